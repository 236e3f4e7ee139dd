// SPDX-License-Identifier: Apache-2.0
// Opening a model: where every tensor's bytes lie, proved once, so that handing them out later cannot go wrong.
#include "formats/onnx/onnx_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <system_error>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/file_map.h"
#include "base/quote_name.h"
#include "formats/onnx/wire.h"

namespace quern::formats {
namespace {

namespace fs = std::filesystem;
using Bytes = std::span<const std::byte>;

// Calls `use(const TensorProto&)` for the initializers and the tensors in attributes; its error ends the walk.
template <class Use>
Result<void> each_tensor(const GraphProto& graph, Use&& use) {
  for (const TensorProto& t : graph.initializers) QUERN_TRY_VOID(use(t));
  for (const NodeProto& n : graph.nodes) {
    for (const AttributeProto& a : n.attributes) {
      if (a.tensor != nullptr) QUERN_TRY_VOID(use(*a.tensor));
    }
  }
  return {};
}

bool lies_inside(const fs::path& folder, const fs::path& file) {
  return std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first == folder.end();
}

bool contains(Bytes whole, Bytes part) {
  const std::less_equal<> le;
  return le(whole.data(), part.data()) && le(part.data() + part.size(), whole.data() + whole.size());
}

// How one number of a typed field becomes the bytes of elements.
struct TypedLayout {
  WireType element = WireType::kVarint;
  size_t width = 0;  // bytes kept of each number
  int64_t lowest = 0;
  int64_t highest = 0;  // lowest == highest: every bit pattern is a value
};

TypedLayout typed_layout(DType type) {
  switch (type) {
    case DType::f32: return {WireType::kFixed32, 4};
    case DType::f64: return {WireType::kFixed64, 8};
    case DType::i64:
    case DType::u64: return {WireType::kVarint, 8};
    case DType::u32: return {WireType::kVarint, 4, 0, std::numeric_limits<uint32_t>::max()};
    case DType::i32:
      return {WireType::kVarint, 4, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
    case DType::i16: return {WireType::kVarint, 2, -32768, 32767};
    case DType::u16:
    case DType::f16:
    case DType::bf16: return {WireType::kVarint, 2, 0, 65535};
    case DType::i8: return {WireType::kVarint, 1, -128, 127};
    case DType::u8:
    case DType::f8_e4m3: return {WireType::kVarint, 1, 0, 255};
    case DType::boolean: return {WireType::kVarint, 1, 0, 1};
    // One number is a pair of elements, seen as a signed or an unsigned byte.
    case DType::u4:
    case DType::i4: return {WireType::kVarint, 1, -128, 255};
  }
  return {};
}

}  // namespace

struct OnnxFile::State {
  struct DataFile {
    fs::path path;  // canonical
    FileMap map;
  };
  struct Place {
    size_t file = 0;
    size_t offset = 0;
    size_t size = 0;
  };

  std::string where;
  FileMap map;                   // a model on disk
  std::vector<std::byte> owned;  // a model in memory
  std::optional<fs::path> folder;
  ModelProto model;
  std::vector<DataFile> files;
  std::unordered_map<std::string_view, size_t> file_of_location;
  mutable std::mutex decoding;
  mutable std::unordered_map<const std::byte*, std::vector<std::byte>> decoded;  // by the tensor's message; guarded

  Error damaged(const TensorProto& tensor, std::string what) const {
    return bad_model(fmt::format("{}: tensor {}", where, quote_name(tensor.name)), std::move(what));
  }

  Result<size_t> resolve(const TensorProto& tensor);
  Result<Place> place_of(const TensorProto& tensor) const;
  Result<void> check_external();
  Result<std::vector<std::byte>> decode(const TensorProto& tensor) const;

  // The map in which `part` lies, or null.
  const FileMap* map_of(std::span<const std::byte> part) const {
    if (contains(map.bytes(), part)) return &map;
    for (const DataFile& file : files) {
      if (contains(file.map.bytes(), part)) return &file.map;
    }
    return nullptr;
  }
};

// The index of the data file that the tensor names; maps it on first sight.
Result<size_t> OnnxFile::State::resolve(const TensorProto& tensor) {
  const std::string_view location = tensor.external.location;
  if (const auto known = file_of_location.find(location); known != file_of_location.end()) return known->second;
  if (!folder) {
    return bad_request(where,
                       fmt::format("the model keeps data in the file {}, but no folder for external data is given",
                                   quote_name(location)));
  }
  if (location.empty() || location.find('\0') != std::string_view::npos) {
    return damaged(tensor, fmt::format("the external location {} is not a file name", quote_name(location)));
  }
  const fs::path relative{std::string(location)};
  if (relative.is_absolute()) {
    return damaged(tensor,
                   fmt::format("the external location {} is absolute, allowed is a path inside of the model's folder",
                               quote_name(location)));
  }
  std::error_code failed;
  const fs::path home = fs::canonical(*folder, failed);
  if (failed) return Error{Errc::io, fmt::format("cannot resolve: {}", failed.message()), folder->string()};
  const fs::path target = fs::weakly_canonical(home / relative, failed);
  if (failed) {
    return damaged(
        tensor, fmt::format("the external location {} cannot be resolved: {}", quote_name(location), failed.message()));
  }
  if (!lies_inside(home, target)) {
    return damaged(tensor, fmt::format("the external location {} leads to {}, outside of the model's folder {}",
                                       quote_name(location), quote_name(std::string_view(target.native())),
                                       quote_name(std::string_view(home.native()))));
  }
  const fs::file_status status = fs::status(target, failed);
  if (!fs::exists(status)) {
    return damaged(tensor,
                   fmt::format("the external data file {} is missing", quote_name(std::string_view(target.native()))));
  }
  if (!fs::is_regular_file(status)) {
    return damaged(tensor, fmt::format("the external location {} is not a regular file", quote_name(location)));
  }
  // Two spellings of one file are one file, or overlaps between them would go unseen.
  const auto same = std::find_if(files.begin(), files.end(), [&](const DataFile& f) { return f.path == target; });
  const auto index = static_cast<size_t>(same - files.begin());
  if (same == files.end()) {
    QUERN_TRY(FileMap mapped, FileMap::open(target));
    files.push_back({target, std::move(mapped)});
  }
  file_of_location.emplace(location, index);
  return index;
}

// Where an external tensor whose file is resolved lies. For a type that quern does not have, the size is what the file
// says (0 if it says nothing).
Result<OnnxFile::State::Place> OnnxFile::State::place_of(const TensorProto& tensor) const {
  const auto file = file_of_location.find(tensor.external.location);
  QUERN_CHECK(file != file_of_location.end(), "a tensor of another model");
  const ExternalData& external = tensor.external;
  const auto offset = static_cast<uint64_t>(external.offset);
  uint64_t size = static_cast<uint64_t>(external.length.value_or(0));
  if (tensor.dtype) {
    const std::optional<size_t> need = storage_bytes(*tensor.dtype, tensor.elements);
    QUERN_CHECK(need.has_value(), "the parser bounds sizes");
    if (external.length && size != *need) {
      return damaged(tensor, fmt::format("the external length is {} bytes, but type and shape need {}", size, *need));
    }
    size = *need;
  }
  const uint64_t available = files[file->second].map.bytes().size();
  if (offset > available || size > available - offset) {
    return damaged(tensor, fmt::format("the tensor takes {} bytes from offset {}, but the file {} has {}", size, offset,
                                       quote_name(external.location), available));
  }
  return Place{file->second, static_cast<size_t>(offset), static_cast<size_t>(size)};
}

Result<void> OnnxFile::State::check_external() {
  struct Range {
    Place place;
    const TensorProto* tensor;
  };
  std::vector<Range> ranges;
  const auto check = [&](const TensorProto& t) -> Result<void> {
    if (t.storage != TensorProto::Storage::kExternal) return {};
    if (const Result<size_t> file = resolve(t); !file) return file.error();
    QUERN_TRY(const Place place, place_of(t));
    if (place.size > 0) ranges.push_back({place, &t});
    return {};
  };
  QUERN_TRY_VOID(each_tensor(model.graph, check));
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.place.file, a.place.offset, a.place.size) < std::tie(b.place.file, b.place.offset, b.place.size);
  });
  for (size_t i = 1; i < ranges.size(); ++i) {
    const Place& a = ranges[i - 1].place;
    const Place& b = ranges[i].place;
    if (a.file != b.file || b.offset >= a.offset + a.size) continue;
    if (a.offset == b.offset && a.size == b.size) continue;  // tied storage
    return damaged(
        *ranges[i].tensor,
        fmt::format("its bytes {} to {} overlap those of tensor {}, {} to {}; allowed are equal or disjoint", b.offset,
                    b.offset + b.size, quote_name(ranges[i - 1].tensor->name), a.offset, a.offset + a.size));
  }
  return {};
}

Result<std::vector<std::byte>> OnnxFile::State::decode(const TensorProto& tensor) const {
  const TypedLayout layout = typed_layout(*tensor.dtype);
  const Bytes file = owned.empty() ? map.bytes() : Bytes(owned);
  const WireSource source{where, file.data()};
  const std::optional<size_t> size = storage_bytes(*tensor.dtype, tensor.elements);
  QUERN_CHECK(size.has_value(), "the parser bounds sizes");
  const size_t count = *size / layout.width;
  // Every number takes a byte of file or more: a shape without values must not make memory.
  if (count > tensor.message.size()) {
    return damaged(tensor, fmt::format("it holds less than {} values, which its shape needs", count));
  }
  std::vector<std::byte> out(*size);
  size_t at = 0;
  const auto read = [&](const WireField& f) -> Result<void> {
    if (f.number != tensor.typed_field) return {};
    return wire_numbers(f, layout.element, source, [&](uint64_t bits) -> Result<void> {
      if (at == count)
        return damaged(tensor, fmt::format("it holds more than {} values, which its shape needs", count));
      const auto value = static_cast<int64_t>(bits);
      if (layout.lowest != layout.highest && (value < layout.lowest || value > layout.highest)) {
        return damaged(tensor, fmt::format("value {} is {}, allowed for {} are {} to {}", at, value,
                                           dtype_name(*tensor.dtype), layout.lowest, layout.highest));
      }
      std::memcpy(out.data() + at++ * layout.width, &bits, layout.width);
      return {};
    });
  };
  QUERN_TRY_VOID(wire_fields(tensor.message, source, read));
  if (at != count) return damaged(tensor, fmt::format("it holds {} values, but its shape needs {}", at, count));
  return out;
}

OnnxFile::OnnxFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
OnnxFile::OnnxFile(OnnxFile&&) noexcept = default;
OnnxFile& OnnxFile::operator=(OnnxFile&&) noexcept = default;
OnnxFile::~OnnxFile() = default;

Result<OnnxFile> OnnxFile::open(const fs::path& model) {
  std::error_code failed;
  if (fs::status(model, failed).type() == fs::file_type::not_found) {
    return bad_model(model.string(), "the model file is missing");
  }
  auto state = std::make_unique<State>();
  state->where = model.string();
  state->folder = model.has_parent_path() ? model.parent_path() : fs::path(".");
  QUERN_TRY(state->map, FileMap::open(model));
  return finish(std::move(state));
}

Result<OnnxFile> OnnxFile::from_bytes(std::vector<std::byte> model, std::optional<fs::path> external_data_dir,
                                      std::string_view where) {
  auto state = std::make_unique<State>();
  state->where = where;
  state->owned = std::move(model);
  state->folder = std::move(external_data_dir);
  return finish(std::move(state));
}

Result<OnnxFile> OnnxFile::finish(std::unique_ptr<State> state) {
  const Bytes bytes = state->owned.empty() ? state->map.bytes() : Bytes(state->owned);
  QUERN_TRY(state->model, parse_model(bytes, state->where));
  QUERN_TRY_VOID(state->check_external());
  return OnnxFile(std::move(state));
}

const ModelProto& OnnxFile::model() const { return state_->model; }

Result<std::span<const std::byte>> OnnxFile::bytes_of(const TensorProto& tensor) const {
  if (!tensor.dtype) {
    return unsupported(
        fmt::format("{}: tensor {}", state_->where, quote_name(tensor.name)),
        fmt::format("its element type is {}, which quern does not have", onnx_type_name(tensor.onnx_type)));
  }
  switch (tensor.storage) {
    case TensorProto::Storage::kNone: return Bytes{};
    case TensorProto::Storage::kRaw: return tensor.raw;
    case TensorProto::Storage::kTyped: {
      const std::lock_guard lock(state_->decoding);
      if (const auto known = state_->decoded.find(tensor.message.data()); known != state_->decoded.end()) {
        return Bytes(known->second);
      }
      QUERN_TRY(std::vector<std::byte> values, state_->decode(tensor));
      return Bytes(state_->decoded.emplace(tensor.message.data(), std::move(values)).first->second);
    }
    case TensorProto::Storage::kExternal: {
      QUERN_TRY(const State::Place place, state_->place_of(tensor));
      return state_->files[place.file].map.bytes().subspan(place.offset, place.size);
    }
  }
  return Bytes{};
}

std::vector<std::span<const std::byte>> OnnxFile::contents() const {
  std::vector<std::span<const std::byte>> all;
  all.push_back(state_->owned.empty() ? state_->map.bytes() : std::span<const std::byte>(state_->owned));
  for (const State::DataFile& file : state_->files) all.push_back(file.map.bytes());
  return all;
}

Result<void> OnnxFile::copy(std::span<const std::byte> part, std::span<std::byte> out) const {
  if (const FileMap* map = state_->map_of(part)) return map->copy(part, out);
  std::ranges::copy(part, out.begin());
  return {};
}

void OnnxFile::drop_pages(std::span<const std::byte> part) const {
  // Only maps: dropping pages of anonymous memory would lose its content.
  if (const FileMap* map = state_->map_of(part)) map->drop_pages(part);
}

}  // namespace quern::formats
