// Token ids that a model's tokenizer gives for texts, for peer_greedy.py to compare with llama.cpp's:
//   peer_tokens MODEL.gguf TEXTS.json
// TEXTS.json: a list of strings. Standard output: as many lists of ids, BOS in front where the model wants
// it.
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/model/model_config.h"
#include "engine/model/model_file.h"
#include "engine/text/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/bench/arguments.h"

namespace kvblend {
namespace {

absl::Status PrintTokens(const std::string& model_path, const std::string& texts_path) {
  KVBLEND_ASSIGN_OR_RETURN(const model::GgufFile file, model::OpenModel(model_path));
  KVBLEND_ASSIGN_OR_RETURN(const text::TokenizerSpec spec, model::ReadTokenizerSpec(file));
  KVBLEND_ASSIGN_OR_RETURN(const auto tokenizer, text::Tokenizer::Create(spec));
  std::ifstream input(texts_path);
  const nlohmann::json texts = nlohmann::json::parse(input, nullptr, /*allow_exceptions=*/false);
  if (!texts.is_array())
    return absl::InvalidArgumentError(absl::StrCat(texts_path, " is no list of strings"));
  nlohmann::json result = nlohmann::json::array();
  for (const nlohmann::json& text : texts) {
    if (!text.is_string())
      return absl::InvalidArgumentError(absl::StrCat(texts_path, " is no list of strings"));
    std::vector<text::TokenId> ids = tokenizer->Encode(text.get<std::string>());
    if (tokenizer->add_bos()) ids.insert(ids.begin(), *tokenizer->bos());
    result.push_back(ids);
  }
  std::printf("%s\n", result.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace kvblend

int main(int argc, char** argv) {
  std::string model_path, texts_path;
  CLI::App app("Token ids of texts");
  app.add_option("MODEL", model_path, "GGUF file")->required();
  app.add_option("TEXTS", texts_path, "JSON list of strings")->required();
  kvblend::ParseOrExit(app, argc, argv);
  return kvblend::ExitCode(kvblend::PrintTokens(model_path, texts_path));
}
