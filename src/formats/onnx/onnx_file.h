// SPDX-License-Identifier: Apache-2.0
// Owns an opened ONNX model: the mapped bytes, the parsed structure over them, and the external data files.
// Does not own the meaning of the graph: duplicate names, cycles and operators are graph/'s.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "formats/onnx/model_proto.h"

namespace quern::formats {

// Move-only. Const calls may run on any number of threads. All views handed out live as long as the OnnxFile, also
// across moves of it.
class OnnxFile {
 public:
  // Maps and parses the model and checks the place of every tensor, in the graph or in a node's attribute: sizes agree
  // with type and shape, external locations stay inside the model's folder after links are resolved, ranges lie inside
  // their files and do not overlap (equal ranges are allowed: tied storage). No tensor payload is read.
  // Errors: bad_model, unsupported (see parse_model), io.
  static Result<OnnxFile> open(const std::filesystem::path& model);

  // The same for a model in memory. External data is looked up in `external_data_dir`; a model that has some is a
  // bad_request without it. `where` names the model in error texts.
  static Result<OnnxFile> from_bytes(std::vector<std::byte> model,
                                     std::optional<std::filesystem::path> external_data_dir,
                                     std::string_view where = "model bytes");

  OnnxFile(OnnxFile&&) noexcept;
  OnnxFile& operator=(OnnxFile&&) noexcept;
  ~OnnxFile();

  const ModelProto& model() const;
  const GraphProto& graph() const { return model().graph; }
  std::optional<int64_t> opset(std::string_view domain) const { return model().opset(domain); }

  // The little-endian bytes of a tensor of this model, exactly storage_bytes(dtype, elements) long. Raw and external
  // data are views into the maps and may start at any address: do not assume alignment to the element size. Typed
  // fields are decoded on the first call and kept.
  // Errors: unsupported (an element type that quern does not have), bad_model (typed values that are too few, too many
  // or out of the type's range). Raw and external tensors of a known type cannot fail.
  Result<std::span<const std::byte>> bytes_of(const TensorProto& tensor) const;

  // Says that `part` of bytes handed out by bytes_of will not be needed soon (for example because its repacked form is
  // used from now on), so that it stops counting as resident. It stays readable. No effect on bytes that are not
  // mapped.
  void drop_pages(std::span<const std::byte> part) const;

  // The bytes of the model and then of each file of external data, as they lie on disk, in the order in which the graph
  // names them first. Alive while the OnnxFile is.
  std::vector<std::span<const std::byte>> contents() const;
  // Copies `part` of one of contents(), or of bytes handed out by bytes_of, through its file, so that no page of it
  // becomes resident. `out` has the same size.
  // Errors: io.
  Result<void> copy(std::span<const std::byte> part, std::span<std::byte> out) const;

 private:
  struct State;
  explicit OnnxFile(std::unique_ptr<State> state);
  static Result<OnnxFile> finish(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quern::formats
