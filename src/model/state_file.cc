// SPDX-License-Identifier: Apache-2.0
// Both directions run every byte through one streaming hash.
#include "model/state_file.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/new_file.h"
#include "base/quote_name.h"

namespace quern::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "QUERNST1";
constexpr uint32_t kLargestFacts = 1 << 20;

struct FreeHash {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};
using Hash = std::unique_ptr<XXH3_state_t, FreeHash>;

Hash new_hash() {
  Hash hash(XXH3_createState());
  QUERN_CHECK(hash != nullptr && XXH3_64bits_reset(hash.get()) == XXH_OK, "a hash state");
  return hash;
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span<const T>(&value, 1));
}

Error io_error(const fs::path& path, std::string_view what) {
  return {Errc::io, fmt::format("{}: {}", what, std::strerror(errno)), path_place(path.string())};
}

}  // namespace

// ---- writing ----

struct StateFileWriter::File {
  explicit File(NewFile opened) : file(std::move(opened)) {}

  NewFile file;
  Hash hash = new_hash();
};

StateFileWriter::StateFileWriter(std::unique_ptr<File> file) : file_(std::move(file)) {}
StateFileWriter::StateFileWriter(StateFileWriter&&) noexcept = default;
StateFileWriter& StateFileWriter::operator=(StateFileWriter&&) noexcept = default;
StateFileWriter::~StateFileWriter() = default;

Result<StateFileWriter> StateFileWriter::create(const fs::path& path, const StateFileHead& head) {
  QUERN_TRY(NewFile file, NewFile::create(path));
  StateFileWriter writer(std::make_unique<File>(std::move(file)));
  const std::string facts = head.facts.dump();
  const auto facts_bytes = static_cast<uint32_t>(facts.size());
  const auto ids = static_cast<uint64_t>(head.ids.size());
  QUERN_TRY_VOID(writer.write(std::as_bytes(std::span(kMagic))));
  QUERN_TRY_VOID(writer.write(bytes_of(facts_bytes)));
  QUERN_TRY_VOID(writer.write(std::as_bytes(std::span(facts))));
  QUERN_TRY_VOID(writer.write(bytes_of(ids)));
  QUERN_TRY_VOID(writer.write(std::as_bytes(std::span(head.ids))));
  return writer;
}

Result<void> StateFileWriter::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  XXH3_64bits_update(file_->hash.get(), bytes.data(), bytes.size());
  return file_->file.write(bytes);
}

Result<void> StateFileWriter::finish() {
  const uint64_t sum = XXH3_64bits_digest(file_->hash.get());
  QUERN_TRY_VOID(file_->file.write(bytes_of(sum)));
  return file_->file.finish();
}

// ---- reading ----

struct StateFileReader::File {
  fs::path path;
  std::FILE* stream = nullptr;
  uint64_t size = 0;
  uint64_t at = 0;
  Hash hash = new_hash();
  StateFileHead head;

  ~File() {
    if (stream != nullptr) std::fclose(stream);
  }
  Error refuse(std::string what) const { return bad_request(fmt::format("{}@{}", path.string(), at), std::move(what)); }
  uint64_t left() const { return size - at; }
};

StateFileReader::StateFileReader(std::unique_ptr<File> file) : file_(std::move(file)) {}
StateFileReader::StateFileReader(StateFileReader&&) noexcept = default;
StateFileReader& StateFileReader::operator=(StateFileReader&&) noexcept = default;
StateFileReader::~StateFileReader() = default;

Result<StateFileReader> StateFileReader::open(const fs::path& path, const nlohmann::json& facts, int64_t most_ids) {
  auto file = std::make_unique<File>();
  file->path = path;
  std::error_code failed;
  if (!fs::exists(path, failed)) return Error{Errc::io, "there is no such file", path_place(path.string())};
  if (!fs::is_regular_file(path, failed)) return Error{Errc::io, "is not a regular file", path_place(path.string())};
  file->size = fs::file_size(path, failed);
  file->stream = std::fopen(path.c_str(), "rb");
  if (failed || file->stream == nullptr) return io_error(path, "cannot be read");
  StateFileReader reader(std::move(file));
  QUERN_TRY_VOID(reader.read_head(facts, most_ids));
  return reader;
}

// What a damaged file states is compared before it decides how much memory is taken.
Result<void> StateFileReader::read_head(const nlohmann::json& facts, int64_t most_ids) {
  File& f = *file_;
  std::string magic(kMagic.size(), '\0');
  if (f.size < kMagic.size()) return f.refuse("is not a saved timeline");
  QUERN_TRY_VOID(read(std::as_writable_bytes(std::span(magic))));
  if (magic != kMagic) {
    f.at = 0;
    return f.refuse("is not a saved timeline of this version of quern");
  }
  uint32_t facts_bytes = 0;
  QUERN_TRY_VOID(read(std::as_writable_bytes(std::span(&facts_bytes, 1))));
  if (facts_bytes > std::min<uint64_t>(kLargestFacts, f.left())) {
    return f.refuse(fmt::format("a head of {} bytes does not fit", facts_bytes));
  }
  std::string text(facts_bytes, '\0');
  QUERN_TRY_VOID(read(std::as_writable_bytes(std::span(text))));
  f.head.facts = nlohmann::json::parse(text, nullptr, false);
  // Nothing nested: a message shows a fact, and showing goes as deep as the value.
  const bool flat = f.head.facts.is_object() && std::ranges::all_of(f.head.facts, [](const nlohmann::json& fact) {
                      return fact.is_string() || fact.is_number_integer();
                    });
  if (!flat) return f.refuse("the head is not a JSON object of strings and integers");
  QUERN_TRY_VOID(expect(facts));
  uint64_t ids = 0;
  QUERN_TRY_VOID(read(std::as_writable_bytes(std::span(&ids, 1))));
  if (ids > f.left() / sizeof(int32_t)) return f.refuse(fmt::format("{} token ids do not fit", ids));
  if (ids > static_cast<uint64_t>(most_ids)) {
    return Error{Errc::too_long, fmt::format("holds {} tokens, the context holds {}", ids, most_ids), f.path.string()};
  }
  f.head.ids.resize(static_cast<size_t>(ids));
  return read(std::as_writable_bytes(std::span(f.head.ids)));
}

const StateFileHead& StateFileReader::head() const { return file_->head; }

Result<void> StateFileReader::expect(const nlohmann::json& facts) const {
  for (const auto& [name, wanted] : facts.items()) {
    const auto found = file_->head.facts.find(name);
    if (found != file_->head.facts.end() && *found == wanted) continue;
    return bad_request(file_->path.string(),
                       fmt::format("was saved with {} = {}, the open model has {}", name,
                                   found == file_->head.facts.end() ? "nothing" : found->dump(), wanted.dump()));
  }
  return {};
}

Result<void> StateFileReader::read(std::span<std::byte> bytes) {
  if (bytes.empty()) return {};
  if (bytes.size() > file_->left()) {
    return file_->refuse(fmt::format("ends after {} of {} bytes", file_->left(), bytes.size()));
  }
  if (std::fread(bytes.data(), 1, bytes.size(), file_->stream) != bytes.size()) {
    return io_error(file_->path, "cannot be read");
  }
  XXH3_64bits_update(file_->hash.get(), bytes.data(), bytes.size());
  file_->at += bytes.size();
  return {};
}

Result<void> StateFileReader::finish() {
  const uint64_t seen = XXH3_64bits_digest(file_->hash.get());
  uint64_t sum = 0;
  QUERN_TRY_VOID(read(std::as_writable_bytes(std::span(&sum, 1))));
  if (file_->left() > 0) return file_->refuse(fmt::format("{} bytes follow the end", file_->left()));
  if (sum != seen) return file_->refuse("the checksum differs: the file is damaged");
  return {};
}

// ---- fingerprint ----

uint64_t fingerprint(std::span<const std::span<const std::byte>> pieces) {
  const Result<uint64_t> all = fingerprint(pieces, [](std::span<const std::byte> part, std::span<std::byte> out) {
    std::ranges::copy(part, out.begin());
    return Result<void>{};
  });
  return *all;
}

Result<uint64_t> fingerprint(std::span<const std::span<const std::byte>> pieces, const CopyBytes& copy) {
  constexpr size_t kWhole = size_t{64} << 20;
  constexpr size_t kStep = size_t{1} << 20;
  constexpr size_t kSample = 4096;
  const Hash hash = new_hash();
  std::vector<std::byte> sample(kStep);
  const auto add = [&](std::span<const std::byte> part) -> Result<void> {
    const std::span<std::byte> out = std::span(sample).first(part.size());
    QUERN_TRY_VOID(copy(part, out));
    XXH3_64bits_update(hash.get(), out.data(), out.size());
    return {};
  };
  for (const auto piece : pieces) {
    const auto size = static_cast<uint64_t>(piece.size());
    XXH3_64bits_update(hash.get(), &size, sizeof(size));
    const bool whole = piece.size() <= kWhole;
    for (size_t at = 0; at < piece.size(); at += kStep) {
      QUERN_TRY_VOID(add(piece.subspan(at, std::min(whole ? kStep : kSample, piece.size() - at))));
    }
    if (!whole) {
      QUERN_TRY_VOID(add(piece.last(kSample)));
    }
  }
  return XXH3_64bits_digest(hash.get());
}

}  // namespace quern::model
