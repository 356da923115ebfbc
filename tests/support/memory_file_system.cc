#include "tests/support/memory_file_system.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend::store {

using Bytes = std::vector<std::byte>;

/// Either a file or a folder; what is durable besides what is there.
struct MemoryFileSystem::Node {
  bool is_folder = false;
  Bytes bytes;
  Bytes durable_bytes;
  std::map<std::string, std::shared_ptr<Node>> names;
  std::map<std::string, std::shared_ptr<Node>> durable_names;
};

namespace {

using Node = MemoryFileSystem::Node;

std::pair<std::string, std::string> Split(const std::string& path) {
  const size_t slash = path.rfind('/');
  return {path.substr(0, slash), path.substr(slash + 1)};
}

absl::Status NotFound(const std::string& path) {
  return absl::NotFoundError(absl::StrCat(path, ": no such file or folder"));
}

int64_t UsedBytes(const Node& node) {
  auto bytes = static_cast<int64_t>(node.bytes.size());
  for (const auto& [name, below] : node.names) bytes += UsedBytes(*below);
  return bytes;
}

Bytes Mixed(const Bytes& before, const Bytes& after, std::mt19937_64& random) {
  constexpr size_t kSector = 512;
  const size_t least = std::min(before.size(), after.size());
  const size_t most = std::max(before.size(), after.size());
  Bytes mixed(least + random() % (most - least + 1));
  for (size_t begin = 0; begin < mixed.size(); begin += kSector) {
    const Bytes& source = random() % 2 == 0 ? before : after;
    for (size_t i = begin; i < std::min(begin + kSector, mixed.size()); ++i) {
      if (i < source.size()) mixed[i] = source[i];
    }
  }
  return mixed;
}

using Survivors = std::map<const Node*, std::shared_ptr<Node>>;

/// One node per node that was there: links to one file stay links to one file.
std::shared_ptr<Node> Survivor(const Node& node, std::mt19937_64& random, Survivors& survivors) {
  std::shared_ptr<Node>& survivor = survivors[&node];
  if (survivor != nullptr) return survivor;
  survivor = std::make_shared<Node>();
  const std::shared_ptr<Node> result = survivor;
  result->is_folder = node.is_folder;
  result->bytes =
      node.bytes == node.durable_bytes ? node.bytes : Mixed(node.durable_bytes, node.bytes, random);
  result->durable_bytes = result->bytes;
  std::set<std::string> names;
  for (const auto& [name, below] : node.names) names.insert(name);
  for (const auto& [name, below] : node.durable_names) names.insert(name);
  for (const std::string& name : names) {
    const auto& source = random() % 2 == 0 ? node.names : node.durable_names;
    const auto found = source.find(name);
    if (found == source.end()) continue;
    result->names[name] = Survivor(*found->second, random, survivors);
  }
  result->durable_names = result->names;
  return result;
}

void ListFiles(const Node& node, const std::string& path, std::vector<std::string>& files) {
  for (const auto& [name, below] : node.names) {
    const std::string inner = absl::StrCat(path, "/", name);
    if (below->is_folder) {
      ListFiles(*below, inner, files);
    } else {
      files.push_back(inner);
    }
  }
}

}  // namespace

class MemoryFile final : public File {
 public:
  MemoryFile(MemoryFileSystem& fs, std::shared_ptr<Node> node, std::string path)
      : fs_(fs), node_(std::move(node)), path_(std::move(path)) {}

  absl::StatusOr<int64_t> ReadAt(int64_t offset, absl::Span<std::byte> out) override {
    absl::MutexLock lock(&fs_.mutex_);
    const auto begin = std::min(static_cast<size_t>(offset), node_->bytes.size());
    const size_t size = std::min(out.size(), node_->bytes.size() - begin);
    std::copy_n(node_->bytes.begin() + static_cast<ptrdiff_t>(begin), size, out.begin());
    return static_cast<int64_t>(size);
  }
  absl::StatusOr<int64_t> WriteAt(int64_t offset, absl::Span<const std::byte> bytes) override {
    absl::MutexLock lock(&fs_.mutex_);
    const size_t end = static_cast<size_t>(offset) + bytes.size();
    const auto growth = static_cast<int64_t>(end) - static_cast<int64_t>(node_->bytes.size());
    if (growth > fs_.capacity_bytes_ - UsedBytes(*fs_.root_)) {
      return absl::ResourceExhaustedError(absl::StrCat(path_, ": no space left"));
    }
    if (growth > 0) node_->bytes.resize(end);
    std::copy(bytes.begin(), bytes.end(), node_->bytes.begin() + offset);
    return static_cast<int64_t>(bytes.size());
  }
  absl::Status Sync() override {
    absl::MutexLock lock(&fs_.mutex_);
    node_->durable_bytes = node_->bytes;
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> Size() override {
    absl::MutexLock lock(&fs_.mutex_);
    return static_cast<int64_t>(node_->bytes.size());
  }
  bool direct() const override { return false; }
  int descriptor() const override { return -1; }
  const std::string& path() const override { return path_; }

 private:
  MemoryFileSystem& fs_;
  const std::shared_ptr<Node> node_;
  const std::string path_;
};

class MemoryLock final : public FileLock {
 public:
  MemoryLock(MemoryFileSystem& fs, std::string path, uint64_t id)
      : fs_(fs), path_(std::move(path)), id_(id) {}
  ~MemoryLock() override {
    absl::MutexLock lock(&fs_.mutex_);
    const auto held = fs_.locks_.find(path_);
    if (held != fs_.locks_.end() && held->second == id_) fs_.locks_.erase(held);
  }

 private:
  MemoryFileSystem& fs_;
  const std::string path_;
  const uint64_t id_;
};

MemoryFileSystem::MemoryFileSystem() : root_(std::make_shared<Node>()) { root_->is_folder = true; }

MemoryFileSystem::~MemoryFileSystem() = default;

std::shared_ptr<Node> MemoryFileSystem::Find(const std::string& path) const {
  std::shared_ptr<Node> node = root_;
  size_t begin = 1;
  while (node != nullptr && begin < path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const auto found = node->names.find(path.substr(begin, end - begin));
    node = found == node->names.end() ? nullptr : found->second;
    begin = end + 1;
  }
  return node;
}

absl::StatusOr<std::shared_ptr<Node>> MemoryFileSystem::Folder(const std::string& path) const {
  std::shared_ptr<Node> node = Find(path);
  if (node == nullptr) return NotFound(path);
  if (!node->is_folder) return absl::FailedPreconditionError(absl::StrCat(path, ": not a folder"));
  return node;
}

absl::StatusOr<std::unique_ptr<File>> MemoryFileSystem::Open(const std::string& path, OpenMode mode) {
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<Node> node = Find(path);
  if (mode == OpenMode::kCreate) {
    if (node != nullptr) return absl::AlreadyExistsError(absl::StrCat(path, ": is there already"));
    const auto [folder_path, name] = Split(path);
    KVBLEND_ASSIGN_OR_RETURN(const std::shared_ptr<Node> folder, Folder(folder_path));
    node = std::make_shared<Node>();
    folder->names[name] = node;
  }
  if (node == nullptr) return NotFound(path);
  if (node->is_folder) return absl::FailedPreconditionError(absl::StrCat(path, ": is a folder"));
  return std::make_unique<MemoryFile>(*this, std::move(node), path);
}

absl::Status MemoryFileSystem::Rename(const std::string& from, const std::string& to) {
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<Node> node = Find(from);
  if (node == nullptr) return NotFound(from);
  const auto [to_folder, to_name] = Split(to);
  KVBLEND_ASSIGN_OR_RETURN(const std::shared_ptr<Node> folder, Folder(to_folder));
  const auto [from_folder, from_name] = Split(from);
  Find(from_folder)->names.erase(from_name);
  folder->names[to_name] = std::move(node);
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::Unlink(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  const std::shared_ptr<Node> node = Find(path);
  if (node == nullptr) return NotFound(path);
  if (node->is_folder) return absl::FailedPreconditionError(absl::StrCat(path, ": is a folder"));
  const auto [folder, name] = Split(path);
  Find(folder)->names.erase(name);
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::MakeFolder(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  if (Find(path) != nullptr) return absl::AlreadyExistsError(absl::StrCat(path, ": is there already"));
  const auto [above, name] = Split(path);
  KVBLEND_ASSIGN_OR_RETURN(const std::shared_ptr<Node> folder, Folder(above));
  auto node = std::make_shared<Node>();
  node->is_folder = true;
  folder->names[name] = std::move(node);
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::SyncFolder(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  KVBLEND_ASSIGN_OR_RETURN(const std::shared_ptr<Node> folder, Folder(path));
  folder->durable_names = folder->names;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<FolderItem>> MemoryFileSystem::List(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  KVBLEND_ASSIGN_OR_RETURN(const std::shared_ptr<Node> folder, Folder(path));
  std::vector<FolderItem> items;
  for (const auto& [name, node] : folder->names) {
    items.push_back({.name = name, .is_folder = node->is_folder, .is_file = !node->is_folder});
  }
  return items;
}

absl::StatusOr<Space> MemoryFileSystem::SpaceOf(const std::string&) {
  absl::MutexLock lock(&mutex_);
  return Space{.total_bytes = capacity_bytes_, .available_bytes = capacity_bytes_ - UsedBytes(*root_)};
}

absl::StatusOr<std::unique_ptr<FileLock>> MemoryFileSystem::Lock(const std::string& path, std::string_view) {
  absl::MutexLock lock(&mutex_);
  const auto [held, is_mine] = locks_.emplace(path, next_lock_);
  if (!is_mine) return absl::FailedPreconditionError(absl::StrCat(path, ": is locked"));
  return std::make_unique<MemoryLock>(*this, path, next_lock_++);
}

void MemoryFileSystem::KillProcess() {
  absl::MutexLock lock(&mutex_);
  locks_.clear();
}

void MemoryFileSystem::LosePower(std::mt19937_64& random) {
  absl::MutexLock lock(&mutex_);
  locks_.clear();
  Survivors survivors;
  root_ = Survivor(*root_, random, survivors);
}

void MemoryFileSystem::SetCapacity(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  capacity_bytes_ = bytes;
}

bool MemoryFileSystem::Exists(const std::string& path) const {
  absl::MutexLock lock(&mutex_);
  return Find(path) != nullptr;
}

std::vector<std::byte> MemoryFileSystem::Contents(const std::string& path) const {
  absl::MutexLock lock(&mutex_);
  return Find(path)->bytes;
}

void MemoryFileSystem::SetContents(const std::string& path, std::vector<std::byte> bytes) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    MakeFolder(path.substr(0, slash)).IgnoreError();
  }
  absl::MutexLock lock(&mutex_);
  const auto [folder, name] = Split(path);
  // In place where it is there already: who has it open sees it.
  std::shared_ptr<Node>& node = Find(folder)->names[name];
  if (node == nullptr) node = std::make_shared<Node>();
  node->bytes = std::move(bytes);
  node->durable_bytes = node->bytes;
}

bool MemoryFileSystem::ChangeContents(const std::string& path,
                                      absl::FunctionRef<void(std::vector<std::byte>&)> change) {
  absl::MutexLock lock(&mutex_);
  const std::shared_ptr<Node> node = Find(path);
  if (node == nullptr) return false;
  change(node->bytes);
  node->durable_bytes = node->bytes;
  return true;
}

std::vector<std::string> MemoryFileSystem::AllFiles() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> files;
  ListFiles(*root_, "", files);
  return files;
}

}  // namespace kvblend::store
