#include "engine/text/jinja/value.h"

#include <algorithm>

#include "base/status_macros.h"
#include "engine/text/jinja/message.h"

namespace kvblend::text::jinja {
namespace {

// How deep a value in a namespace may be; the namespace itself counts as one deeper.
constexpr int kMaxAttributeDepth = kMaxValueDepth / 2;

absl::Status TooDeep() {
  return absl::ResourceExhaustedError(Message("lists are nested deeper than ", kMaxValueDepth, " levels"));
}

}  // namespace

Value Value::Undefined(std::string name) {
  return Value(
      Data(UndefinedData{name.empty() ? nullptr : std::make_shared<const std::string>(std::move(name))}));
}
Value Value::None() { return Value(Data(NoneData{})); }
Value Value::Bool(bool value) { return Value(Data(value)); }
Value Value::Integer(int64_t value) { return Value(Data(value)); }
Value Value::Float(double value) { return Value(Data(value)); }
Value Value::String(std::string value) {
  return Value(Data(std::make_shared<const std::string>(std::move(value))));
}
Value Value::Of(Function function) {
  return Value(Data(std::make_shared<const Function>(std::move(function))));
}

absl::StatusOr<Value> Value::List(Items items) {
  auto data = std::make_shared<ListData>();
  for (const Value& item : items) {
    data->depth = std::max(data->depth, item.depth() + 1);
    data->holds_namespace |= item.holds_namespace();
  }
  if (data->depth > kMaxValueDepth) return TooDeep();
  data->items = std::move(items);
  return Value(Data(std::shared_ptr<const ListData>(std::move(data))));
}

absl::StatusOr<Value> Value::Dict(Pairs pairs) {
  auto data = std::make_shared<DictData>();
  for (const auto& [key, item] : pairs) {
    data->depth = std::max(data->depth, item.depth() + 1);
    data->holds_namespace |= item.holds_namespace();
  }
  if (data->depth > kMaxValueDepth) return TooDeep();
  data->pairs = std::move(pairs);
  return Value(Data(std::shared_ptr<const DictData>(std::move(data))));
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): its values are moved out of it
absl::StatusOr<Value> Value::Namespace(Pairs pairs) {
  Value value(Data(NamespaceData{std::make_shared<DictData>()}));
  for (auto& [name, item] : pairs) KVBLEND_RETURN_IF_ERROR(value.SetAttribute(name, std::move(item)));
  return value;
}

Value::Kind Value::kind() const { return static_cast<Kind>(data_.index()); }

int64_t Value::integer() const { return is(Kind::kBool) ? int64_t{boolean()} : std::get<int64_t>(data_); }

double Value::number() const {
  return is(Kind::kFloat) ? std::get<double>(data_) : static_cast<double>(integer());
}

const std::string& Value::string() const { return *std::get<std::shared_ptr<const std::string>>(data_); }
const Items& Value::items() const { return std::get<std::shared_ptr<const ListData>>(data_)->items; }
const Pairs& Value::pairs() const {
  if (is(Kind::kNamespace)) return std::get<NamespaceData>(data_).dict->pairs;
  return std::get<std::shared_ptr<const DictData>>(data_)->pairs;
}
const Function& Value::function() const { return *std::get<std::shared_ptr<const Function>>(data_); }

const std::string& Value::undefined_name() const {
  static const auto& unnamed = *new std::string("a value");
  const auto& name = std::get<UndefinedData>(data_).name;
  return name == nullptr ? unnamed : *name;
}

const Value* Value::Find(std::string_view key) const {
  if (!is(Kind::kDict) && !is(Kind::kNamespace)) return nullptr;
  for (const auto& [name, item] : pairs()) {
    if (name == key) return &item;
  }
  return nullptr;
}

absl::Status Value::SetAttribute(std::string_view name, Value value) const {
  if (value.holds_namespace()) {
    return absl::UnimplementedError(Message(
        "the attribute '", name, "' of a namespace is to hold a namespace, which is not implemented"));
  }
  if (value.depth() > kMaxAttributeDepth) return TooDeep();
  Pairs& pairs = std::get<NamespaceData>(data_).dict->pairs;
  for (auto& [known, item] : pairs) {
    if (known != name) continue;
    item = std::move(value);
    return absl::OkStatus();
  }
  pairs.emplace_back(std::string(name), std::move(value));
  return absl::OkStatus();
}

bool Value::Truth() const {
  switch (kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInteger:
    case Kind::kFloat:
      return number() != 0;
    case Kind::kString:
      return !string().empty();
    case Kind::kList:
      return !items().empty();
    case Kind::kDict:
      return !pairs().empty();
    case Kind::kNamespace:
    case Kind::kFunction:
      return true;
  }
  return false;
}

std::string_view Value::KindName() const {
  static constexpr std::string_view kNames[] = {"undefined", "none", "bool", "int",       "float",
                                                "string",    "list", "dict", "namespace", "function"};
  return kNames[data_.index()];
}

int Value::depth() const {
  if (is(Kind::kList)) return std::get<std::shared_ptr<const ListData>>(data_)->depth;
  if (is(Kind::kDict)) return std::get<std::shared_ptr<const DictData>>(data_)->depth;
  return is(Kind::kNamespace) ? kMaxAttributeDepth + 1 : 0;
}

bool Value::holds_namespace() const {
  if (is(Kind::kList)) return std::get<std::shared_ptr<const ListData>>(data_)->holds_namespace;
  if (is(Kind::kDict)) return std::get<std::shared_ptr<const DictData>>(data_)->holds_namespace;
  return is(Kind::kNamespace);
}

absl::Status CheckFind(const Value& value, std::string_view key, Budget* budget) {
  if (!value.is(Value::Kind::kDict) && !value.is(Value::Kind::kNamespace)) return absl::OkStatus();
  return budget->CheckSearch(value.pairs().size(), key.size());
}

absl::Status CheckKeys(const Pairs& pairs, Budget* budget) {
  size_t bytes = 0;
  for (const auto& [key, value] : pairs) bytes += key.size();
  return budget->Allocate(bytes);
}

absl::StatusOr<bool> Equal(const Value& a, const Value& b, Budget* budget) {
  KVBLEND_RETURN_IF_ERROR(budget->Spend(1));
  if (a.is_number() && b.is_number()) {
    const bool floats = a.is(Value::Kind::kFloat) || b.is(Value::Kind::kFloat);
    return floats ? a.number() == b.number() : a.integer() == b.integer();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::kString:
      KVBLEND_RETURN_IF_ERROR(budget->Spend(static_cast<int64_t>(a.string().size() / 256)));
      return a.string() == b.string();
    case Value::Kind::kList: {
      if (a.items().size() != b.items().size()) return false;
      for (size_t i = 0; i < a.items().size(); ++i) {
        KVBLEND_ASSIGN_OR_RETURN(const bool equal, Equal(a.items()[i], b.items()[i], budget));
        if (!equal) return false;
      }
      return true;
    }
    case Value::Kind::kDict: {
      if (a.pairs().size() != b.pairs().size()) return false;
      for (const auto& [key, item] : a.pairs()) {
        KVBLEND_RETURN_IF_ERROR(budget->Spend(static_cast<int64_t>(b.pairs().size())));
        KVBLEND_RETURN_IF_ERROR(CheckFind(b, key, budget));
        const Value* other = b.Find(key);
        if (other == nullptr) return false;
        KVBLEND_ASSIGN_OR_RETURN(const bool equal, Equal(item, *other, budget));
        if (!equal) return false;
      }
      return true;
    }
    case Value::Kind::kNamespace:
      return &a.pairs() == &b.pairs();
    case Value::Kind::kFunction:
      return a.function().name == b.function().name && a.function().macro == b.function().macro;
    default:
      return true;  // none and none, undefined and undefined
  }
}

absl::StatusOr<int> Compare(const Value& a, const Value& b, Budget* budget) {
  KVBLEND_RETURN_IF_ERROR(budget->Spend(1));
  if (a.is_number() && b.is_number()) {
    if (a.is(Value::Kind::kFloat) || b.is(Value::Kind::kFloat)) {
      return a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : 0;
    }
    return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
  }
  // UTF-8 sorts as its code points do.
  if (a.is(Value::Kind::kString) && b.is(Value::Kind::kString)) {
    KVBLEND_RETURN_IF_ERROR(
        budget->Spend(static_cast<int64_t>(std::min(a.string().size(), b.string().size()) / 256)));
    return a.string().compare(b.string());
  }
  if (a.is(Value::Kind::kList) && b.is(Value::Kind::kList)) {
    for (size_t i = 0; i < a.items().size() && i < b.items().size(); ++i) {
      KVBLEND_ASSIGN_OR_RETURN(const bool equal, Equal(a.items()[i], b.items()[i], budget));
      if (!equal) return Compare(a.items()[i], b.items()[i], budget);
    }
    return a.items().size() < b.items().size() ? -1 : a.items().size() > b.items().size() ? 1 : 0;
  }
  if (a.is(Value::Kind::kUndefined) || b.is(Value::Kind::kUndefined)) {
    const Value& undefined = a.is(Value::Kind::kUndefined) ? a : b;
    return absl::InvalidArgumentError(Message(undefined.undefined_name(), " is undefined"));
  }
  return absl::InvalidArgumentError(
      Message("values of type ", a.KindName(), " and ", b.KindName(), " have no order"));
}

}  // namespace kvblend::text::jinja
