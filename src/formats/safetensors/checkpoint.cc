// SPDX-License-Identifier: Apache-2.0
// Opening a checkpoint: the files of the index are mapped, their headers merged and held against the index.
#include "formats/safetensors/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/file_map.h"
#include "base/model_part.h"
#include "base/quote_name.h"
#include "formats/safetensors/index.h"

namespace quern::formats {
namespace {

namespace fs = std::filesystem;

struct File {
  fs::path path;
  FileMap map;
  SafetensorsHeader header;
};

Result<File> open_file(fs::path path) {
  QUERN_TRY_VOID(check_part(path));
  File file;
  QUERN_TRY(file.map, FileMap::open(path));
  QUERN_TRY(file.header, parse_safetensors_header(file.map.bytes(), path.string()));
  file.path = std::move(path);
  return file;
}

bool holds(const File& file, std::span<const std::byte> part) {
  const std::less_equal<> le;
  const std::span<const std::byte> all = file.map.bytes();
  return le(all.data(), part.data()) && le(part.data() + part.size(), all.data() + all.size());
}

// Each tensor of the index is in the file that it names, and the files hold no others.
Result<void> check_index(const SafetensorsIndex& index, std::span<const File> files, const std::string& where) {
  for (const SafetensorsIndex::Entry& entry : index.tensors) {
    const File& file = files[static_cast<size_t>(entry.file)];
    if (find_tensor(file.header.tensors, entry.tensor) == nullptr) {
      return bad_model(file.path.string(), fmt::format("tensor {} is missing, which {} places here",
                                                       quote_name(entry.tensor), kSafetensorsIndexFile));
    }
  }
  size_t found = 0;
  for (const File& file : files) found += file.header.tensors.size();
  if (found == index.tensors.size()) return {};
  for (size_t i = 0; i < files.size(); ++i) {
    for (const SafetensorsTensor& tensor : files[i].header.tensors) {
      const auto entry = std::lower_bound(index.tensors.begin(), index.tensors.end(), tensor.name,
                                          [](const auto& e, std::string_view name) { return e.tensor < name; });
      const bool placed =
          entry != index.tensors.end() && entry->tensor == tensor.name && static_cast<size_t>(entry->file) == i;
      if (!placed) {
        return bad_model(where, fmt::format("tensor {} is in the file {}, but has no place there in weight_map",
                                            quote_name(tensor.name), quote_name(files[i].path.filename().string())));
      }
    }
  }
  QUERN_CHECK(false, "more tensors than the index has, yet each in its place");
  return {};
}

// File `i` of the index cannot be opened; of the tensors that it should hold, the first is named.
Error misplaced(const SafetensorsIndex& index, size_t i, const std::string& where, const Error& cause) {
  const auto entry = std::find_if(index.tensors.begin(), index.tensors.end(),
                                  [&](const auto& e) { return static_cast<size_t>(e.file) == i; });
  QUERN_CHECK(entry != index.tensors.end(), "every file of an index holds a tensor");
  return {cause.code, fmt::format("in {}: {}", quote_name(index.files[i]), cause.what),
          fmt::format("{}: weight_map: tensor {}", where, quote_name(entry->tensor))};
}

}  // namespace

struct SafetensorsCheckpoint::State {
  std::vector<File> files;
  std::vector<SafetensorsTensor> tensors;

  const File& file_with(std::span<const std::byte> part) const {
    const auto file = std::find_if(files.begin(), files.end(), [&](const File& f) { return holds(f, part); });
    QUERN_CHECK(file != files.end(), "bytes of another checkpoint");
    return *file;
  }
};

SafetensorsCheckpoint::SafetensorsCheckpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsCheckpoint::SafetensorsCheckpoint(SafetensorsCheckpoint&&) noexcept = default;
SafetensorsCheckpoint& SafetensorsCheckpoint::operator=(SafetensorsCheckpoint&&) noexcept = default;
SafetensorsCheckpoint::~SafetensorsCheckpoint() = default;

Result<SafetensorsCheckpoint> SafetensorsCheckpoint::open(const fs::path& folder) {
  auto state = std::make_unique<State>();
  const fs::path index_path = folder / kSafetensorsIndexFile;
  if (!has_part(index_path)) {
    QUERN_TRY(File file, open_file(folder / kSafetensorsFile));
    state->files.push_back(std::move(file));
  } else {
    if (has_part(folder / kSafetensorsFile)) {
      return bad_model(folder.string(),
                       fmt::format("holds {} and {}; allowed is one of them", kSafetensorsFile, kSafetensorsIndexFile));
    }
    QUERN_TRY_VOID(check_part(index_path));
    QUERN_TRY(const FileMap map, FileMap::open(index_path));
    const std::string_view json(reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size());
    QUERN_TRY(const SafetensorsIndex index, parse_safetensors_index(json, index_path.string()));
    for (size_t i = 0; i < index.files.size(); ++i) {
      if (const auto there = check_part(folder / index.files[i]); !there.ok()) {
        return misplaced(index, i, index_path.string(), there.error());
      }
      QUERN_TRY(File file, open_file(folder / index.files[i]));
      state->files.push_back(std::move(file));
    }
    QUERN_TRY_VOID(check_index(index, state->files, index_path.string()));
  }
  for (const File& file : state->files) {
    state->tensors.insert(state->tensors.end(), file.header.tensors.begin(), file.header.tensors.end());
  }
  std::sort(state->tensors.begin(), state->tensors.end(),
            [](const SafetensorsTensor& a, const SafetensorsTensor& b) { return a.name < b.name; });
  return SafetensorsCheckpoint(std::move(state));
}

std::span<const SafetensorsTensor> SafetensorsCheckpoint::tensors() const { return state_->tensors; }

size_t SafetensorsCheckpoint::file_count() const { return state_->files.size(); }

size_t SafetensorsCheckpoint::payload_bytes() const {
  size_t bytes = 0;
  for (const SafetensorsTensor& tensor : state_->tensors) bytes += tensor.bytes.size();
  return bytes;
}

std::string SafetensorsCheckpoint::file_of(const SafetensorsTensor& tensor) const {
  return state_->file_with(tensor.bytes).path.string();
}

void SafetensorsCheckpoint::drop_pages(std::span<const std::byte> part) const {
  state_->file_with(part).map.drop_pages(part);
}

Result<void> SafetensorsCheckpoint::copy(std::span<const std::byte> part, std::span<std::byte> out) const {
  const File& file = state_->file_with(part);
  const Result<void> done = file.map.copy(part, out);
  if (!done.ok()) return Error{done.error().code, done.error().what, file.path.string()};
  return {};
}

void SafetensorsCheckpoint::expect_random_reads(std::span<const std::byte> part) const {
  state_->file_with(part).map.expect_random_reads(part);
}

bool has_safetensors(const fs::path& folder) {
  return has_part(folder / kSafetensorsFile) || has_part(folder / kSafetensorsIndexFile);
}

}  // namespace quern::formats
