// The interpreter of templates against jinja2 as transformers runs it: tests/fixtures/chat_language.tsv,
// written by tests/fixtures/make_chat_fixtures.py; and its bounds.
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "engine/text/jinja/template.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::text::jinja {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

absl::StatusOr<std::string> RenderWith(const std::string& source, Pairs variables, RenderLimits limits = {}) {
  Environment environment;
  environment.variables = std::move(variables);
  environment.now = absl::FromCivil(absl::CivilSecond(2026, 3, 5, 14, 7, 9), absl::UTCTimeZone());
  environment.limits = limits;
  const absl::StatusOr<Template> parsed = Template::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return parsed->Render(environment);
}

// The messages of the script.
Pairs FixtureVariables() {
  Items messages;
  const std::pair<const char*, const char*> turns[] = {{"system", " Be brief. "},
                                                       {"user", "H\u00e9 \"x\" <b>\n"},
                                                       {"assistant", "Yes\\no"},
                                                       {"user", "\u4e16\u754c it's 2"}};
  for (const auto& [role, content] : turns) {
    messages.push_back(*Value::Dict({{"role", Value::String(role)}, {"content", Value::String(content)}}));
  }
  return {{"messages", *Value::List(std::move(messages))},
          {"add_generation_prompt", Value::Bool(true)},
          {"bos_token", Value::String("<s>")},
          {"eos_token", Value::String("</s>")},
          {"tools", Value::None()},
          {"documents", Value::None()}};
}

TEST(JinjaTest, RendersAsJinjaDoes) {
  std::ifstream file(KVBLEND_SOURCE_DIR "/tests/fixtures/chat_language.tsv");
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const std::vector<std::string> columns = absl::StrSplit(line, '\t');
    std::string source, expected;
    ASSERT_EQ(columns.size(), 3u) << "line " << number;
    ASSERT_TRUE(absl::CUnescape(columns[0], &source) && absl::CUnescape(columns[2], &expected))
        << "line " << number;
    const absl::StatusOr<std::string> output = RenderWith(source, FixtureVariables());
    if (columns[1] == "error") {
      EXPECT_FALSE(output.ok()) << columns[0] << "\n  gives " << *output << "\n  jinja2 raises " << expected;
      continue;
    }
    ASSERT_EQ(columns[1], "ok");
    if (!output.ok()) {
      ADD_FAILURE() << columns[0] << "\n  fails: " << output.status();
    } else {
      EXPECT_EQ(*output, expected) << columns[0];
    }
  }
  EXPECT_GE(number, 80);
}

std::string ErrorOf(const std::string& source, absl::StatusCode code) {
  const absl::StatusOr<std::string> output = RenderWith(source, FixtureVariables());
  EXPECT_FALSE(output.ok()) << source << " gives " << *output;
  EXPECT_EQ(output.status().code(), code) << output.status();
  return std::string(output.status().message());
}

TEST(JinjaTest, ErrorsNameLineAndConstruct) {
  using enum absl::StatusCode;
  EXPECT_EQ(ErrorOf("a\nb\n{{ raise_exception('no tools') }}", kFailedPrecondition),
            "line 3: the template refuses: no tools");
  EXPECT_EQ(ErrorOf("\n{{ 'x' | shuffle }}", kUnimplemented),
            "line 2: the filter 'shuffle' is not implemented");
  EXPECT_EQ(ErrorOf("{{ 'x'.encode() }}", kUnimplemented),
            "line 1: the method 'encode' of a string is not implemented");
  EXPECT_EQ(ErrorOf("\n\n{% include 'x' %}", kUnimplemented), "line 3: {% include %} is not implemented");
  EXPECT_EQ(ErrorOf("{{ tool.name }}", kInvalidArgument), "line 1: 'tool' is undefined");
  EXPECT_EQ(ErrorOf("{% for m in messages %}\n{{ m.content.x.y }}{% endfor %}", kInvalidArgument),
            "line 2: the attribute 'x' of a string is undefined");
  EXPECT_EQ(ErrorOf("{% if 1 %}\n", kInvalidArgument), "line 1: the template ends before 'endif'");
  EXPECT_THAT(ErrorOf("{{ 1 $ 2 }}", kInvalidArgument), HasSubstr("line 1: '$' is not known"));
  EXPECT_THAT(ErrorOf("x\n\xff", kInvalidArgument), HasSubstr("line 2: not valid UTF-8"));
  EXPECT_THAT(ErrorOf("{% fro x %}", kInvalidArgument),
              HasSubstr("{% fro %} is not known; allowed: for, if"));
}

TEST(JinjaTest, WhateverATemplateAsksForIsBounded) {
  const auto refused = [](const std::string& source) {
    return ErrorOf(source, absl::StatusCode::kResourceExhausted);
  };
  EXPECT_THAT(refused("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"),
              HasSubstr("allowed: 200000 steps"));
  EXPECT_THAT(refused("{{ 'x' * 999999999 }}"), HasSubstr("a string has 999999999 bytes"));
  EXPECT_THAT(refused("{{ 'xyz' * 9223372036854775807 }}"), HasSubstr("bytes"));
  EXPECT_THAT(refused("{{ [1, 2, 3] * 9223372036854775807 }}"), HasSubstr("items"));
  EXPECT_THAT(refused("{{ range(9999999) }}"), HasSubstr("items"));
  const std::string doubling =
      "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
  EXPECT_THAT(refused(doubling), HasSubstr("a string has"));
  refused(
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}");
  refused(
      "{% set ns = namespace(x=[1]) %}{% for i in range(9) %}{% set ns.x = ns.x + ns.x + ns.x %}{% endfor %}{{ ns.x == ns.x }}"
      "{% for i in range(9999) %}{{ ns.x == ns.x }}{% endfor %}");
  refused("{{ ('x' * 200000) | replace('x', 'y' * 200000) }}");
  refused(
      "{% set a = 'a' * 200000 %}{% set b = 'a' * 99999 ~ 'b' %}{% for i in range(999) %}{{ b in a }}{% endfor %}");
  // Without a limit each of these would take gigabytes, or minutes.
  const std::string many = "{% set x = ['a' * 262144] * 65536 %}";
  for (const char* use : {"x | sort", "x | sort(case_sensitive=true)", "x | min", "x | max", "x | unique",
                          "x | select('lower')", "x | map('upper')"}) {
    EXPECT_THAT(refused(many + "{{ " + use + " }}"), AnyOf(HasSubstr("steps"), HasSubstr("too much memory")))
        << use;
  }
  // One long text that is looked through again and again, and keys, of which every value has its own.
  const std::string blanks = "{% set x = ' ' * 262144 %}{% set d = {x: 1} %}";
  for (const char* use : {"x.isspace()", "x.isdigit()", "x.strip()", "x | length", "x | int",
                          "x.startswith([x, x])", "d[x]", "d.get(x)", "x in d", "d | attr(x)", "d == d"}) {
    const std::string uses = absl::StrCat("{% set y = [", use, ", ", use, "] %}");
    EXPECT_THAT(refused(blanks + "{% for i in range(2000) %}" + uses + "{% endfor %}"), HasSubstr("steps"))
        << use;
  }
  for (const char* use :
       {"([d] * 1000) | map('list')", "([d] * 1000) | map('items')", "[d.keys()]", "[dict(d)]", "[{x: 1}]"}) {
    const std::string kept = absl::StrCat("{% set ns.all = ns.all + (", use, ") %}");
    EXPECT_THAT(
        refused(blanks + "{% set ns = namespace(all=[]) %}{% for i in range(200) %}" + kept + "{% endfor %}"),
        HasSubstr("too much memory"))
        << use;
  }
  EXPECT_LT(ErrorOf("{{ (1 | attr('a' * 262144)).b }}", absl::StatusCode::kInvalidArgument).size(), 200u);
  EXPECT_THAT(refused("{{ " + std::string(257, 'a') + " }}"), HasSubstr("a name has 257 bytes"));
  EXPECT_THAT(refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("nested too deeply"));
  EXPECT_THAT(refused("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"),
              HasSubstr("nested too deeply"));
  EXPECT_THAT(refused("{{ " + std::string(5000, '-') + "1 }}"), HasSubstr("nested too deeply"));
  std::string blocks, sum = "{{ 1";
  for (int i = 0; i < 2000; ++i) blocks += "{% if 1 %}", sum += " + 1";
  EXPECT_THAT(refused(blocks), HasSubstr("nested deeper"));
  EXPECT_THAT(refused(sum + " }}"), HasSubstr("nested too deeply"));
  EXPECT_THAT(refused(std::string((1 << 20) + 1, 'x')), HasSubstr("bytes"));
  EXPECT_THAT(refused("{% for i in range(9999) %}" + std::string(1000, 'x') + "{% endfor %}"),
              HasSubstr("the output"));
  // A namespace in itself would never be freed.
  const absl::StatusOr<std::string> circle =
      RenderWith("{% set ns = namespace() %}{% set ns.x = [ns] %}", {});
  EXPECT_EQ(circle.status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace kvblend::text::jinja
