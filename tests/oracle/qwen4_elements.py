# SPDX-License-Identifier: Apache-2.0
"""Tensors of the reference library against arrays of quern, in both element types, with the tolerances that the
qwen4_exp comparison uses. quern takes and gives bfloat16 as the uint16 of its bits, since NumPy has no such type."""
import numpy as np
import torch

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().contiguous()
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def random(generator: torch.Generator, *shape: int, dtype=torch.float32, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


def ordered(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bits as integers in the order of the numbers, neighbours one apart, -0 equal to 0."""
    magnitude = (bits & 0x7FFF).astype(np.int32)
    return np.where(bits >> 15 != 0, -magnitude, magnitude)


def assert_elementwise(name: str, ours: np.ndarray, theirs: torch.Tensor, equal: float = 0.99, cancels: bool = False,
                       as_right: tuple[torch.Tensor, ...] = ()) -> None:
    """float32: within 1e-5 of the largest element. bfloat16: every element within one unit in the last place, and the
    share `equal` of them bit for bit. Where long float32 sums may cancel before the rounding, what the float32 rule
    allows is allowed too: a unit in the last place has no lower bound near zero. `as_right` has other results that the
    reference gives where its float32 sums are off by what they may be: an element may be within one unit of one of them."""
    theirs = array(theirs)
    assert ours.dtype == theirs.dtype and ours.size == theirs.size, f"{name}: {ours.dtype} {ours.shape}"
    ours = ours.reshape(theirs.shape)
    if ours.dtype == np.float32:
        worst, bound = np.abs(ours - theirs).max(), 1e-5 * np.abs(theirs).max()
        assert worst <= bound, f"{name}: off by {worst:.3e}, allowed {bound:.3e}"
        return
    steps = np.abs(ordered(ours) - ordered(theirs))
    for other in as_right:
        near = np.abs(ordered(ours) - ordered(array(other).reshape(theirs.shape))) <= 1
        steps[(steps > 1) & near] = 1
    if cancels:
        seen, wanted = (torch.from_numpy(bits.copy()).view(torch.bfloat16).float().numpy() for bits in (ours, theirs))
        steps[(steps > 1) & (np.abs(seen - wanted) <= 1e-5 * np.abs(wanted).max())] = 1
    assert steps.max() <= 1, f"{name}: {(steps > 1).sum()} of {steps.size} elements are up to {steps.max()} units off"
    share = (steps == 0).mean()
    assert share >= equal, f"{name}: {share:.4%} of the elements are equal bit for bit, wanted {equal:.2%}"


def units(ours: torch.Tensor, theirs: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """The difference in bfloat16 units in the last place of numbers as large as `size`."""
    return (ours.double() - theirs.double()) / torch.exp2(torch.floor(torch.log2(size.double().clamp_min(2.0**-126))) - 7)


def assert_projection(name: str, ours: np.ndarray, theirs: torch.Tensor, beyond: float = 0) -> None:
    """float32 as above; bfloat16 within two units in the last place of max(|ref|, 2^-8 max|row|), since the order of a
    sum is unbounded in such units near zero. A share `beyond` of the elements may be up to eight units off: where rounded
    results of projections go into the next one, whatever order the sums have, some of them land on the other side of a
    midpoint."""
    if theirs.dtype == torch.float32:
        return assert_elementwise(name, ours, theirs)
    seen = torch.from_numpy(ours.reshape(theirs.shape).copy()).view(torch.bfloat16)
    steps = units(seen, theirs, torch.maximum(theirs.abs(), theirs.abs().amax(-1, keepdim=True) * 2.0**-8)).abs()
    limit = 8 if beyond > 0 else 2
    assert steps.max() <= limit, f"{name}: {steps.max().item():.1f} units off"
    share = (steps > 2).double().mean().item()
    assert share <= beyond, f"{name}: {share:.4%} of the elements are more than two units off, allowed {beyond:.4%}"


# Of the elements of the reference's mixture as many are more than two units of the largest term away from what exact sums give,
# at the published widths (0.010 %, rounded to a power of two).
BEYOND_TWO_UNITS = 2.0**-13


def assert_mixture(name: str, ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, largest: torch.Tensor) -> None:
    """bfloat16 sums of rounded projections of rounded projections against the reference's own terms, added like ours: 99 % of
    the elements are the same bit for bit. In the rest a sum in another order put an activation or a term on the other side of
    a midpoint, and an activation moves all terms of its row, so what the reference gives with exact sums is as right. A sum may
    cancel, so `largest`, its largest term, gives the unit: up to two, of a small share up to eight."""
    steps = torch.minimum(units(ours, theirs, largest).abs(), units(ours, exact, largest).abs())
    assert steps.max() <= 8, f"{name}: {steps.max().item():.1f} units of the largest term off"
    share = (steps > 2).double().mean().item()
    assert share <= BEYOND_TWO_UNITS, f"{name}: {share:.4%} of the elements are more than two units of the largest term off"
    share = (ours == theirs).double().mean().item()
    assert share >= 0.99, f"{name}: {share:.4%} of the elements are equal bit for bit, wanted 99 %"


def squares(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, largest: torch.Tensor) -> tuple[float, float, int]:
    """How far ours and the reference's are from `exact`: the sums of squared units, and of how many elements."""
    mine, reference = (units(x, exact, largest).square().sum().item() for x in (ours, theirs))
    return mine, reference, ours.numel()


def assert_as_exact_as(distances: list[tuple[float, float, int]]) -> None:
    """Both have the same roundings between sums in float32, `exact` has them between sums in float64: ours may be further off
    than the reference's by what two draws of the same noise differ. A single rounding that lands on the other side moves a whole
    row, so that only the sum over all calls is steady."""
    mine, reference, count = (sum(x) for x in zip(*distances))
    mine, reference = np.sqrt(mine / count), np.sqrt(reference / count)
    assert mine <= np.sqrt(2) * reference, f"mixture: {mine:.4f} units from exact sums, the reference {reference:.4f}"
