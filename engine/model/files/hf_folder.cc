#include "engine/model/files/hf_folder.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "engine/model/files/hf_config.h"
#include "engine/model/files/hf_multimodal.h"
#include "engine/model/files/hf_tensors.h"
#include "engine/model/files/json_text.h"
#include "engine/model/files/mapped_file.h"
#include "engine/model/files/safetensors.h"
#include "engine/model/gguf/gguf_text.h"
#include "engine/text/utf8.h"

namespace kvblend::model {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr size_t kMaxIndexBytes = size_t{32} << 20;
constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;
constexpr size_t kMaxTokenizerConfigBytes = size_t{16} << 20;  // lists every added token
constexpr size_t kMaxShards = 4096;
constexpr int64_t kMaxTokenId = (int64_t{1} << 31) - 1;

class MappedFolder final : public FolderFiles {
 public:
  explicit MappedFolder(std::string path) : path_(std::move(path)) {}

  absl::StatusOr<absl::Span<const std::byte>> Read(const std::string& file) override {
    KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> mapped, MappedFile::Open(Concat(path_, "/", file)));
    return mapped_.emplace_back(std::move(mapped))->bytes();
  }

 private:
  const std::string path_;
  std::vector<std::unique_ptr<MappedFile>> mapped_;
};

class FolderReader {
 public:
  FolderReader(FolderFiles& files, const std::string& name, TranslatedModel& out)
      : files_(files), name_(name), out_(out) {}

  absl::Status Read();

 private:
  using Bytes = absl::Span<const std::byte>;

  std::string PathOf(std::string_view file) const { return Concat(name_, "/", file); }
  /// None when there is no such file.
  absl::StatusOr<std::optional<Bytes>> Find(const std::string& file) const;
  absl::StatusOr<std::optional<nlohmann::json>> FindJson(const std::string& file, size_t max_bytes) const;
  absl::StatusOr<std::vector<SafeTensor>> ReadTensors() const;
  absl::StatusOr<std::vector<SafeTensor>> ReadShards(const nlohmann::json& index) const;
  absl::Status ReadTokenIds(const HfFields& config);
  absl::Status ReadNamedToken(const HfFields& tokenizer_config, std::string_view field);
  absl::Status ReadTokenizer();
  absl::Status ReadTemplate(const nlohmann::json* tokenizer_config);

  FolderFiles& files_;
  const std::string& name_;
  TranslatedModel& out_;
};

absl::StatusOr<std::optional<FolderReader::Bytes>> FolderReader::Find(const std::string& file) const {
  const absl::StatusOr<Bytes> bytes = files_.Read(file);
  if (absl::IsNotFound(bytes.status())) return std::nullopt;
  if (!bytes.ok()) return bytes.status();
  return *bytes;
}

absl::StatusOr<std::optional<nlohmann::json>> FolderReader::FindJson(const std::string& file,
                                                                     size_t max_bytes) const {
  KVBLEND_ASSIGN_OR_RETURN(const auto bytes, Find(file));
  if (!bytes.has_value()) return std::nullopt;
  KVBLEND_ASSIGN_OR_RETURN(nlohmann::json object, ParseJsonObject(*bytes, PathOf(file), max_bytes));
  return object;
}

absl::StatusOr<std::vector<SafeTensor>> FolderReader::ReadShards(const nlohmann::json& index) const {
  const std::string path = PathOf("model.safetensors.index.json");
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) {
    return absl::InvalidArgumentError(Concat(path, ": field 'weight_map' is missing; allowed: an object"));
  }
  std::set<std::string> shards;
  for (const auto& [tensor, file] : map->items()) {
    // Shards are in this folder: names that lead out of it are refused.
    const auto* shard = file.get_ptr<const std::string*>();
    if (shard == nullptr || shard->find('/') != std::string::npos || !shard->ends_with(".safetensors")) {
      return absl::InvalidArgumentError(Concat(path, ": tensor ", Quote(tensor), " is in ", ShowJson(file),
                                               "; allowed: names of .safetensors files in this folder"));
    }
    shards.insert(*shard);
  }
  if (shards.size() > kMaxShards) {
    return absl::InvalidArgumentError(
        Concat(path, ": ", shards.size(), " files are named; allowed: up to ", kMaxShards));
  }
  std::vector<SafeTensor> tensors;
  for (const std::string& shard : shards) {
    KVBLEND_ASSIGN_OR_RETURN(const Bytes bytes, files_.Read(shard));
    KVBLEND_ASSIGN_OR_RETURN(std::vector<SafeTensor> found, ParseSafetensors(bytes, PathOf(shard)));
    for (SafeTensor& tensor : found) {
      const auto named = map->find(tensor.name);
      if (named == map->end() || named->get_ref<const std::string&>() != shard) {
        return absl::DataLossError(Concat(PathOf(shard), ": tensor ", Quote(tensor.name), " is ",
                                          named == map->end() ? "nowhere" : ShowJson(*named),
                                          " according to model.safetensors.index.json"));
      }
      tensors.push_back(std::move(tensor));
    }
  }
  if (tensors.size() == map->size()) return tensors;
  // No file has a name twice, and all their names are in the index: some names of the index are in no file.
  std::set<std::string_view> found;
  for (const SafeTensor& tensor : tensors) found.insert(tensor.name);
  std::string missing;
  for (const auto& [tensor, file] : map->items()) {
    if (missing.empty() && !found.contains(tensor)) missing = tensor;
  }
  return absl::DataLossError(Concat(path, ": tensor ", Quote(missing), " is not in the file that is named"));
}

absl::StatusOr<std::vector<SafeTensor>> FolderReader::ReadTensors() const {
  // One file beside shards was saved later, into their folder: transformers takes it, too.
  KVBLEND_ASSIGN_OR_RETURN(const auto whole, Find("model.safetensors"));
  if (whole.has_value()) return ParseSafetensors(*whole, PathOf("model.safetensors"));
  KVBLEND_ASSIGN_OR_RETURN(const auto index, FindJson("model.safetensors.index.json", kMaxIndexBytes));
  if (index.has_value()) return ReadShards(*index);
  return absl::NotFoundError(
      Concat(name_, ": there is no model.safetensors and no model.safetensors.index.json"));
}

// The ids that config.json and generation_config.json give. Of several that end an answer, GGUF files have
// keys for two that chat models use: the end of a text, and the end of a turn, which is last in these lists.
// Those between get a key of their own.
absl::Status FolderReader::ReadTokenIds(const HfFields& config) {
  KVBLEND_ASSIGN_OR_RETURN(const auto generation, FindJson("generation_config.json", kMaxConfigBytes));
  const nlohmann::json* eos = config.Find("eos_token_id");
  std::string source = config.name();
  if (generation.has_value()) {
    const HfFields fields(*generation, PathOf("generation_config.json"));
    if (fields.Find("eos_token_id") != nullptr) {
      eos = fields.Find("eos_token_id");
      source = fields.name();
    }
  }
  KVBLEND_ASSIGN_OR_RETURN(const auto bos, config.Integer("bos_token_id", 0, kMaxTokenId));
  if (bos.has_value()) out_.SetInteger("tokenizer.ggml.bos_token_id", static_cast<uint64_t>(*bos));
  if (eos == nullptr) return absl::OkStatus();
  const auto is_id = [](const nlohmann::json& id) {
    return id.is_number_unsigned() && id.get<uint64_t>() <= static_cast<uint64_t>(kMaxTokenId);
  };
  const bool is_list = eos->is_array() && !eos->empty() && std::all_of(eos->begin(), eos->end(), is_id);
  if (!is_list && !is_id(*eos)) {
    return absl::InvalidArgumentError(Concat(source, ": field 'eos_token_id' is ", ShowJson(*eos),
                                             "; allowed: the number of a token, or a list of such"));
  }
  const nlohmann::json& first = is_list ? eos->front() : *eos;
  out_.SetInteger("tokenizer.ggml.eos_token_id", first.get<uint64_t>());
  if (is_list && eos->size() > 1) {
    out_.SetInteger("tokenizer.ggml.eot_token_id", eos->back().get<uint64_t>());
    const std::vector<int32_t> between(eos->begin() + 1, eos->end() - 1);
    if (!between.empty()) out_.SetIntegers("tokenizer.ggml.eog_token_ids", between);
  }
  return absl::OkStatus();
}

absl::Status FolderReader::ReadTemplate(const nlohmann::json* tokenizer_config) {
  std::string text;
  KVBLEND_ASSIGN_OR_RETURN(const auto file, Find("chat_template.jinja"));
  if (file.has_value()) {
    text.assign(reinterpret_cast<const char*>(file->data()), std::min(file->size(), kMaxTemplateBytes + 1));
  } else if (tokenizer_config != nullptr && tokenizer_config->contains("chat_template")) {
    const nlohmann::json& value = (*tokenizer_config)["chat_template"];
    const nlohmann::json* chosen = value.is_string() ? &value : nullptr;
    // Several templates, by name.
    if (value.is_array()) {
      for (const nlohmann::json& named : value) {
        const bool is_default = named.is_object() && named.value("name", nlohmann::json()) == "default";
        if (is_default && named.contains("template")) chosen = &named["template"];
      }
    }
    if (value.is_null() || (value.is_array() && chosen == nullptr)) return absl::OkStatus();
    if (chosen == nullptr || !chosen->is_string()) {
      return absl::InvalidArgumentError(Concat(PathOf("tokenizer_config.json"), ": field 'chat_template' is ",
                                               ShowJson(value),
                                               "; allowed: a string, or a list of named ones"));
    }
    text = chosen->get<std::string>();
  } else {
    return absl::OkStatus();
  }
  if (text.size() > kMaxTemplateBytes || text::FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(Concat(name_, ": the chat template is too long or not valid UTF-8; ",
                                             "allowed: up to ", kMaxTemplateBytes, " bytes"));
  }
  out_.SetString("tokenizer.chat_template", std::move(text));
  return absl::OkStatus();
}

// What prompts begin with and templates write is what the tokenizer's own file names, by text: config.json
// may have another one's number.
absl::Status FolderReader::ReadNamedToken(const HfFields& tokenizer_config, std::string_view field) {
  const auto value = tokenizer_config.object().find(field);
  if (value == tokenizer_config.object().end()) return absl::OkStatus();
  const nlohmann::json* name = &*value;
  if (name->is_object() && name->contains("content")) name = &(*name)["content"];
  if (!name->is_string() && !value->is_null()) {
    return tokenizer_config.Wrong(field, "a string, an object with a string 'content', or null");
  }
  // Empty: there is none.
  out_.SetString(Concat("tokenizer.huggingface.", field), name->is_string() ? name->get<std::string>() : "");
  return absl::OkStatus();
}

absl::Status FolderReader::ReadTokenizer() {
  KVBLEND_ASSIGN_OR_RETURN(const auto tokenizer, Find("tokenizer.json"));
  if (!tokenizer.has_value()) {
    return absl::NotFoundError(
        Concat(name_, ": there is no tokenizer.json (a folder with tokenizer.model alone cannot be read)"));
  }
  if (tokenizer->size() > kMaxTokenizerBytes) {
    return absl::InvalidArgumentError(Concat(PathOf("tokenizer.json"), ": ", tokenizer->size(),
                                             " bytes; allowed: up to ", kMaxTokenizerBytes));
  }
  out_.SetView("tokenizer.huggingface.json",
               {reinterpret_cast<const char*>(tokenizer->data()), tokenizer->size()});
  KVBLEND_ASSIGN_OR_RETURN(const auto config, FindJson("tokenizer_config.json", kMaxTokenizerConfigBytes));
  if (config.has_value()) {
    const HfFields fields(*config, PathOf("tokenizer_config.json"));
    KVBLEND_ASSIGN_OR_RETURN(const auto add_bos, fields.Bool("add_bos_token"));
    if (add_bos.has_value()) out_.SetBool("tokenizer.ggml.add_bos_token", *add_bos);
    KVBLEND_RETURN_IF_ERROR(ReadNamedToken(fields, "bos_token"));
    KVBLEND_RETURN_IF_ERROR(ReadNamedToken(fields, "eos_token"));
  }
  return ReadTemplate(config.has_value() ? &*config : nullptr);
}

absl::Status FolderReader::Read() {
  KVBLEND_ASSIGN_OR_RETURN(const Bytes bytes, files_.Read("config.json"));
  const std::string path = PathOf("config.json");
  KVBLEND_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(bytes, path, kMaxConfigBytes));
  const HfFields whole(object, path);
  KVBLEND_ASSIGN_OR_RETURN(const std::optional<nlohmann::json> text_part, TextPartOf(whole));
  const HfFields config(text_part.has_value() ? *text_part : object, path);
  KVBLEND_ASSIGN_OR_RETURN(const HfModel model, TranslateHfConfig(config, out_));
  KVBLEND_ASSIGN_OR_RETURN(std::vector<SafeTensor> tensors, ReadTensors());
  if (text_part.has_value()) {
    KVBLEND_ASSIGN_OR_RETURN(tensors, TextTensorsOf(std::move(tensors), name_));
  }
  KVBLEND_RETURN_IF_ERROR(TranslateHfTensors(std::move(tensors), model, name_, out_));
  KVBLEND_RETURN_IF_ERROR(ReadTokenIds(config));
  return ReadTokenizer();
}

}  // namespace

std::shared_ptr<FolderFiles> MapFolder(const std::string& path) {
  return std::make_shared<MappedFolder>(path);
}

absl::StatusOr<GgufFile> PresentFolder(std::shared_ptr<FolderFiles> files, std::string name) {
  auto model = std::make_shared<TranslatedModel>();
  KVBLEND_RETURN_IF_ERROR(FolderReader(*files, name, *model).Read());
  model->AddOwner(std::move(files));
  return TranslatedModel::Present(std::move(model), std::move(name));
}

}  // namespace kvblend::model
