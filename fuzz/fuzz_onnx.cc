// SPDX-License-Identifier: Apache-2.0
// Any bytes as model.onnx: they open or are refused, and every tensor of an opened model can be read to its last byte.
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

#include "formats/onnx/onnx_file.h"

namespace {

using namespace quern::formats;

void read_all(const OnnxFile& file, const TensorProto& tensor) {
  const auto bytes = file.bytes_of(tensor);
  if (!bytes.ok()) return;
  if (bytes->size() != quern::storage_bytes(*tensor.dtype, tensor.elements)) std::abort();
  volatile unsigned sum = 0;
  for (const std::byte b : *bytes) sum = sum + static_cast<unsigned>(b);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const quern::Result<OnnxFile> file = OnnxFile::from_bytes({begin, begin + size}, std::nullopt);
  if (!file.ok()) {
    if (file.error().what.empty() || file.error().where.empty()) std::abort();
    return 0;
  }
  for (const TensorProto& t : file->graph().initializers) read_all(*file, t);
  for (const NodeProto& n : file->graph().nodes) {
    if (n.op_type.empty()) std::abort();
    for (const AttributeProto& a : n.attributes) {
      if (attribute_type_name(a.type).empty() || n.attribute(a.name) != &a) std::abort();
      if (a.type == AttributeType::kTensor) read_all(*file, *a.tensor);
    }
  }
  return 0;
}
