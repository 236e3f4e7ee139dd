#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Makes src/text/unicode_patch.inc: the code points for which the installed PCRE2 and utf8proc disagree with Hugging Face
# `tokenizers` about general category, white space or NFC. Compares over all code points; nothing is taken from tables.
# Usage: .venv/bin/python tools/make_unicode_patch.py > src/text/unicode_patch.inc
import ctypes
import sys

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn").split()
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
ALL = "".join(map(chr, CODE_POINTS))

# Long in Unicode, so every version knows them: same category, no case partner in ASCII, one for each UTF-8 length.
REPRESENTATIVES = {
    "Lu": (None, 0x1E00, 0x10400), "Ll": (None, 0x1E01, 0x10428), "Lm": (None, 0x3005, 0x16B40),
    "Lo": (None, 0x4E00, 0x10000), "Mn": (0x0483, 0x20D0, 0x10A01), "Mc": (None, 0x0903, 0x11000),
    "Nd": (None, 0x0966, 0x104A0), "No": (None, 0x2460, 0x10107), "Pd": (None, 0x2010, 0x10EAD),
    "Po": (None, 0x2016, 0x10100), "Sm": (None, 0x2200, 0x1D6C1), "So": (None, 0x2300, 0x10137),
    "Cf": (None, 0x200B, 0x1D173),
}

PCRE2 = ctypes.CDLL("libpcre2-8.so.0")
UTF8PROC = ctypes.CDLL("libutf8proc.so.2")
LIBC = ctypes.CDLL(None)
PCRE2.pcre2_compile_8.restype = ctypes.c_void_p
PCRE2.pcre2_match_data_create_8.restype = ctypes.c_void_p
PCRE2.pcre2_get_ovector_pointer_8.restype = ctypes.POINTER(ctypes.c_size_t)
UTF8PROC.utf8proc_NFD.restype = ctypes.c_void_p
UTF8PROC.utf8proc_NFC.restype = ctypes.c_void_p
UTF8PROC.utf8proc_unicode_version.restype = ctypes.c_char_p


def utf8_length(code_point):
    return 1 + (code_point >= 0x80) + (code_point >= 0x800) + (code_point >= 0x10000)


def pcre2_set(pattern):
    """The code points that PCRE2 puts into a class."""
    utf, ucp, no_utf_check = 0x00080000, 0x00020000, 0x40000000
    error, offset = ctypes.c_int(), ctypes.c_size_t()
    source = (pattern + "+").encode()
    code = ctypes.c_void_p(PCRE2.pcre2_compile_8(source, ctypes.c_size_t(len(source)), ctypes.c_uint32(utf | ucp),
                                                 ctypes.byref(error), ctypes.byref(offset), None))
    if not code:
        raise ValueError(f"PCRE2 cannot compile {pattern}")
    match = ctypes.c_void_p(PCRE2.pcre2_match_data_create_8(ctypes.c_uint32(1), None))
    subject = ALL.encode()
    found, at = set(), 0
    while PCRE2.pcre2_match_8(code, subject, ctypes.c_size_t(len(subject)), ctypes.c_size_t(at),
                              ctypes.c_uint32(no_utf_check), match, None) > 0:
        vector = PCRE2.pcre2_get_ovector_pointer_8(match)
        found.update(map(ord, subject[vector[0]:vector[1]].decode()))
        at = vector[1]
    return found


def reference_set(pattern):
    """The code points that the reference puts into a class."""
    split = pre_tokenizers.Split(Regex(pattern + "+"), "removed")
    kept = set()
    for piece, _ in split.pre_tokenize_str(ALL):
        kept.update(map(ord, piece))
    return set(CODE_POINTS) - kept


def utf8proc(function, text):
    pointer = function(text.encode())
    result = ctypes.string_at(pointer).decode()
    LIBC.free(ctypes.c_void_p(pointer))
    return result


def ranges(code_points):
    out = []
    for c in sorted(code_points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def print_table(kind, name, rows):
    print(f"constexpr {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        if len(line) + len(row) + 2 > 120:
            print(line)
            line = "   "
        line += f" {row},"
    print(line)
    print("};")


def class_patches():
    category, differs = {}, set()
    for name in CATEGORIES:
        ours, theirs = pcre2_set(f"\\p{{{name}}}"), reference_set(f"\\p{{{name}}}")
        category.update(dict.fromkeys(theirs, name))
        differs |= ours ^ theirs
    space_ours, space_theirs = pcre2_set("\\s"), reference_set("\\s")
    differs |= space_ours ^ space_theirs
    rows = {}
    for c in sorted(differs):
        stand_in = REPRESENTATIVES[category[c]][utf8_length(c) - 2]
        if stand_in is None or utf8_length(stand_in) != utf8_length(c) or category[stand_in] != category[c]:
            raise ValueError(f"no representative for U+{c:04X}, category {category[c]}")
        if stand_in in differs or (stand_in in space_ours) != (c in space_theirs):
            raise ValueError(f"representative U+{stand_in:04X} does not fit U+{c:04X}")
        rows.setdefault(stand_in, []).append(c)
    return sorted((first, last, stand_in) for stand_in, cs in rows.items() for first, last in ranges(cs))


def plain_starters():
    """Code points that take part in NFC for utf8proc and not for the reference."""
    nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    differs = set()
    for before in ("e", "\uac00"):
        for c in CODE_POINTS[1:]:
            theirs = nfc(before + chr(c))
            if theirs != utf8proc(UTF8PROC.utf8proc_NFC, before + chr(c)):
                if theirs != before + chr(c):
                    raise ValueError(f"U+{c:04X} composes for the reference only: stand-ins cannot express that")
                differs.add(c)
    for make in (lambda c: chr(c), lambda c: "x" + chr(c) + "\u0334", lambda c: "x\u0345" + chr(c)):
        for c in CODE_POINTS[1:]:
            ours, theirs = utf8proc(UTF8PROC.utf8proc_NFD, make(c)), nfd(make(c))
            if ours == theirs:
                continue
            if theirs != make(c):
                raise ValueError(f"U+{c:04X} takes part in NFC for the reference only: stand-ins cannot express that")
            differs.add(c)
            # The parts of a composition that the reference does not know.
            decomposed = utf8proc(UTF8PROC.utf8proc_NFD, chr(c))
            if decomposed != chr(c):
                differs.add(ord(decomposed[-1]))
    return differs


def main():
    print("// SPDX-License-Identifier: Apache-2.0")
    print(f"// Generated by tools/make_unicode_patch.py against tokenizers {tokenizers.__version__}, utf8proc with Unicode "
          f"{UTF8PROC.utf8proc_unicode_version().decode()}.")
    print("// Included by unicode_patch.cc only.")
    print()
    print("// first, last, the code point that stands in for them while matching (same UTF-8 length).")
    print_table("ClassPatch", "kClassPatches", [f"{{0x{a:X}, 0x{b:X}, 0x{r:X}}}" for a, b, r in class_patches()])
    print()
    print("// first, last of the code points that neither reorder nor compose.")
    print_table("CodePointRange", "kPlainStarters", [f"{{0x{a:X}, 0x{b:X}}}" for a, b in ranges(plain_starters())])


if __name__ == "__main__":
    sys.exit(main())
