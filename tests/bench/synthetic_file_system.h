// Very many small entries, made up as they are read: for measuring the index without a disk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/store/disk/disk_paths.h"
#include "engine/store/disk/file_system.h"
#include "engine/store/format/entry_format.h"

namespace kvblend::store {

/// Entries of chunks without tokens: a page of header each, under /synthetic. Read-only.
class SyntheticFileSystem final : public FileSystem {
 public:
  SyntheticFileSystem(int64_t num_entries, size_t label_bytes) : label_(label_bytes, 'x') {
    keys_.reserve(static_cast<size_t>(num_entries));
    for (int64_t i = 0; i < num_entries; ++i) keys_.emplace_back(Sha256(std::to_string(i)));
    std::sort(keys_.begin(), keys_.end());
  }

  const std::vector<ChunkKey>& keys() const { return keys_; }

  /// Writes all entries to a folder of the real file system, without syncing them.
  void WriteTo(const std::string& folder) const {
    const internal::DiskPaths paths{folder};
    for (const ChunkKey& key : keys_) {
      std::filesystem::create_directories(paths.Folder(key));
      const auto file = *PosixFileSystem().Open(paths.Entry(key), OpenMode::kCreate);
      const std::string header = HeaderOf(key);
      WriteFully(*file, 0, {reinterpret_cast<const std::byte*>(header.data()), header.size()}).IgnoreError();
    }
  }

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    if (mode == OpenMode::kCreate) return absl::PermissionDeniedError("read-only");
    const absl::StatusOr<ChunkKey> key = ChunkKey::FromHex(std::filesystem::path(path).stem().string());
    if (!key.ok()) return absl::NotFoundError(path);
    return std::make_unique<SyntheticFile>(path, HeaderOf(*key));
  }
  absl::StatusOr<std::vector<FolderItem>> List(const std::string& path) override {
    const std::string prefix = "/synthetic/entries";
    std::vector<FolderItem> items;
    if (path.rfind(prefix, 0) != 0) return items;
    std::string digits;
    for (const char c : path.substr(prefix.size())) {
      if (c != '/') digits += c;
    }
    Digest first{};
    if (!digits.empty()) first = *DigestFromHex(digits + std::string(64 - digits.size(), '0'));
    for (auto it = std::lower_bound(keys_.begin(), keys_.end(), ChunkKey(first)); it != keys_.end(); ++it) {
      const std::string hex = it->ToHex();
      if (hex.compare(0, digits.size(), digits) != 0) break;
      const bool is_file = digits.size() == 4;
      std::string name = is_file ? hex + ".kvb1" : hex.substr(digits.size(), 2);
      if (items.empty() || items.back().name != name) items.push_back({std::move(name), !is_file, is_file});
    }
    return items;
  }
  absl::Status Rename(const std::string&, const std::string&) override { return absl::OkStatus(); }
  absl::Status Unlink(const std::string&) override { return absl::OkStatus(); }
  absl::Status MakeFolder(const std::string&) override { return absl::OkStatus(); }
  absl::Status SyncFolder(const std::string&) override { return absl::OkStatus(); }
  absl::StatusOr<Space> SpaceOf(const std::string&) override { return Space{}; }
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string&, std::string_view) override {
    return std::make_unique<FileLock>();
  }

 private:
  class SyntheticFile final : public File {
   public:
    SyntheticFile(std::string path, std::string bytes) : path_(std::move(path)), bytes_(std::move(bytes)) {}
    absl::StatusOr<int64_t> ReadAt(int64_t offset, absl::Span<std::byte> out) override {
      const size_t begin = std::min(static_cast<size_t>(offset), bytes_.size());
      const size_t size = std::min(out.size(), bytes_.size() - begin);
      std::memcpy(out.data(), bytes_.data() + begin, size);
      return static_cast<int64_t>(size);
    }
    absl::StatusOr<int64_t> WriteAt(int64_t, absl::Span<const std::byte>) override {
      return absl::PermissionDeniedError("read-only");
    }
    absl::Status Sync() override { return absl::OkStatus(); }
    absl::StatusOr<int64_t> Size() override { return static_cast<int64_t>(bytes_.size()); }
    bool direct() const override { return false; }
    int descriptor() const override { return -1; }
    const std::string& path() const override { return path_; }

   private:
    const std::string path_;
    const std::string bytes_;
  };

  std::string HeaderOf(const ChunkKey& key) const {
    EntryHeader header;
    header.address.key = key;
    header.address.content_key = ContentKey(key.digest());
    header.address.anchor_hash = HashTokens(std::vector<int32_t>{1});
    header.address.format = {
        .encoding = kernels::KvEncoding::kInt8, .num_layers = 30, .num_kv_heads = 3, .head_dim = 64};
    header.address.tenant_namespace = "tenant";
    header.label = label_;
    header.compute_cost_seconds = 1;
    header.created = absl::FromUnixSeconds(1795219200);
    header.layers.resize(30);
    return *EncodeEntryHeader(header);
  }

  const std::string label_;
  std::vector<ChunkKey> keys_;
};

}  // namespace kvblend::store
