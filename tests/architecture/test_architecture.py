"""The tree keeps to its architecture, and the rules notice when it does not.

    python3 -m unittest discover -s tests/architecture
"""

import os
import re
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import drawing  # noqa: E402
import rules  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def messages(path, text, existing=None):
    exists = (lambda target: True) if existing is None else (lambda target: target in existing)
    return [violation.message for violation in rules.check_text(path, text, exists)]


class TreeTest(unittest.TestCase):
    def test_tree_keeps_the_rules(self):
        violations = rules.check_tree(ROOT)
        self.assertEqual([], [str(violation) for violation in violations])

    def test_files_have_names_that_somebody_chose(self):
        self.assertEqual([], rules.badly_named_files(ROOT))
        with tempfile.TemporaryDirectory() as root:
            for name in ("1.2x", "README.md", ".gitignore", "a b", "make_x.py"):
                open(os.path.join(root, name), "w", encoding="utf-8").close()
            self.assertEqual(["1.2x", "a b"], rules.badly_named_files(root))

    def test_no_folder_is_crowded(self):
        self.assertEqual([], rules.crowded_folders(ROOT))

    def test_the_tree_is_really_looked_at(self):
        files = rules.source_files(ROOT)
        self.assertIn("kernels/backend.h", files)
        self.assertIn("engine/api/engine.h", files)
        for room in rules.ALLOWED:
            self.assertTrue(any(rules.room_of(path) == room for path in files), f"no source file in {room}")
        self.assertFalse([path for path in files if path.startswith("build/")])

    def test_every_folder_of_the_product_is_a_room_or_in_one(self):
        homeless = [path for path in rules.source_files(ROOT)
                    if path.startswith(rules.PRODUCT) and path.endswith(rules.INCLUDING_SUFFIXES)
                    and rules.room_of(path) is None and not path.startswith(rules.COMMON)]
        self.assertEqual([], homeless)


class ArrowsTest(unittest.TestCase):
    """The rules, the includes, the targets of CMake and the documents name the same arrows."""

    def test_every_allowed_arrow_is_in_use(self):
        used = rules.arrows(ROOT)
        self.assertEqual({}, {room: sorted(allowed - used[room]) for room, allowed in rules.ALLOWED.items()
                              if allowed - used[room]})

    def test_no_circle(self):
        finished, open_ = set(), []

        def visit(room):
            self.assertNotIn(room, open_, f"circle: {open_ + [room]}")
            if room in finished:
                return
            open_.append(room)
            for below in sorted(rules.ALLOWED[room]):
                visit(below)
            open_.pop()
            finished.add(room)

        for room in rules.ALLOWED:
            visit(room)

    def test_the_engine_stays_small_enough_to_keep_in_mind(self):
        graph = drawing.engine_arrows(ROOT)
        self.assertLessEqual(len(graph), rules.MAX_ENGINE_ROOMS)
        self.assertLessEqual(sum(map(len, graph.values())), rules.MAX_ENGINE_ARROWS)

    def test_cmake_names_the_same_arrows(self):
        linked = rules.linked_rooms(ROOT, "engine/")
        self.assertEqual({room: sorted(allowed) for room, allowed in rules.ALLOWED.items()
                          if room.startswith("engine/")},
                         {room: sorted(rooms) for room, rooms in linked.items()})

    def test_the_document_shows_the_same_arrows(self):
        with open(drawing.DOCUMENT, encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(drawing.drawing(ROOT), drawing.documented(text), "tests/architecture/drawing.py --update")
        self.assertIsNone(drawing.documented("no drawing"))


class ChecklistTest(unittest.TestCase):
    def test_what_contributing_tells_to_touch_exists(self):
        text = rules.read(ROOT, "CONTRIBUTING.md")
        table = text[text.index("### What to touch"):text.index("## Code")]
        named = [path for path in re.findall(r"`([^` ]+)`", table) if "/" in path and "NAME" not in path]
        self.assertGreater(len(named), 10)
        self.assertEqual([], [path for path in named if not os.path.exists(os.path.join(ROOT, path))])


class DetectionTest(unittest.TestCase):
    def assert_refused(self, path, include, fragment=""):
        found = messages(path, f"#pragma once\n#include {include}\n")
        self.assertEqual(1, len(found), f"{path} including {include}: {found}")
        self.assertIn(fragment, found[0])

    def assert_accepted(self, path, include):
        self.assertEqual([], messages(path, f"#pragma once\n#include {include}\n"))

    def test_layers(self):
        self.assert_refused("kernels/cpu/linear/linear.cc", '"engine/api/engine.h"')
        self.assert_refused("kernels/cpu/linear/linear.cc", '"engine/model/model.h"')
        self.assert_refused("kernels/cpu/kv/kv_pages.cc", '"kernels/cpu/attention/attention.h"')
        self.assert_refused("kernels/cuda/rows/sampling.cu", '"kernels/cuda/cuda_backend.h"')
        self.assert_refused("engine/serve/engine_thread.cc", '"server/grpc/service.h"')
        self.assert_refused("engine/api/engine.h", '"server/grpc/service.h"')
        self.assert_refused("server/grpc/service.cc", '"kernels/backend.h"')
        self.assert_refused("server/grpc/service.cc", '"engine/blend/blender.h"')
        self.assert_accepted("server/grpc/service.cc", '"engine/api/engine.h"')
        self.assert_accepted("engine/serve/loop.cc", '"engine/blend/blender.h"')
        self.assert_accepted("tests/unit/blend/blender_test.cc", '"kernels/backend.h"')

    def test_the_product_knows_nothing_of_its_tests(self):
        self.assert_refused("kernels/cuda/device/device.h", '"tests/cuda_emulation/device.h"', "its tests")
        self.assert_refused("server/cli/app.cc", '"tests/support/fake_engine.h"', "its tests")

    def test_inside_the_engine(self):
        self.assert_refused("engine/blend/blender.cc", '"engine/schedule/loop.h"')
        self.assert_refused("engine/model/model.cc", '"engine/blend/blender.h"')
        self.assert_refused("engine/kv/page_pool.h", '"engine/store/chunk_store.h"')
        self.assert_refused("engine/kv/page_pool.h", '"engine/model/transformer.h"')
        self.assert_refused("engine/api/engine.h", '"engine/store/chunk_store.h"')
        self.assert_refused("engine/store/chunk_store.h", '"engine/store/disk/disk_tier.h"')
        self.assert_refused("engine/store/format/entry_format.h", '"engine/store/lower_tier.h"')
        self.assert_refused("engine/blend/kv_loader.h", '"engine/store/disk/disk_tier.h"')
        self.assert_accepted("engine/store/disk/disk_tier.h", '"engine/store/lower_tier.h"')
        self.assert_refused("engine/text/tokenizer.h", '"engine/prompt/layout.h"')
        self.assert_accepted("engine/prompt/layout.h", '"engine/text/tokenizer.h"')
        self.assert_accepted("engine/blend/blender.h", '"engine/api/request.h"')

    def test_some_rooms_use_abseil_only(self):
        self.assert_refused("engine/api/engine.h", "<nlohmann/json.hpp>", "Abseil")
        self.assert_refused("engine/prompt/chunking.cc", "<nlohmann/json.hpp>", "Abseil")
        self.assert_refused("engine/text/tokenizer.cc", '"kernels/backend.h"')
        self.assert_refused("engine/prompt/layout.cc", "<unistd.h>", "Abseil")
        self.assert_accepted("engine/text/tokenizer.cc", "<string_view>")
        self.assert_accepted("engine/text/tokenizer.cc", '"absl/strings/str_cat.h"')

    def test_common_headers(self):
        self.assert_accepted("engine/text/tokenizer.cc", '"base/status_macros.h"')
        self.assert_accepted("kernels/backend.cc", '"base/status_macros.h"')
        self.assert_refused("base/status_macros.h", '"engine/model/model.h"', "Abseil")

    def test_transports_stay_in_the_server(self):
        for include in ("<grpcpp/grpcpp.h>", '"grpcpp/grpcpp.h"', "<google/protobuf/message.h>", "<httplib.h>",
                        '"kvblend/v1/inference.pb.h"', "<prometheus/counter.h>", "<CLI/CLI.hpp>"):
            self.assertIn(True, ["transports" in text or "from the root" in text
                                 for text in messages("engine/serve/loop.cc", f"#include {include}\n")], include)
            self.assertNotEqual([], messages("kernels/cpu/linear/linear.cc", f"#include {include}\n"), include)
        self.assert_accepted("server/http/http_server.cc", "<httplib.h>")
        self.assert_accepted("server/cli/main.cc", "<CLI/CLI.hpp>")

    def test_include_paths(self):
        self.assert_refused("engine/kv/page_pool.cc", '"../kernels/backend.h"', "root")
        self.assert_refused("engine/kv/page_pool.cc", '"page_pool.h"', "root")
        found = messages("engine/kv/page_pool.cc", '#include "kernels/gone.h"\n', existing=set())
        self.assertEqual(['"kernels/gone.h" does not exist'], found)
        self.assert_accepted("engine/kv/page_pool.cc", '  "kernels/backend.h"')

    def test_house_rules(self):
        self.assertEqual(["#pragma once is missing"], messages("kernels/a.h", "int x;\n"))
        self.assertEqual([], messages("kernels/cpu/a-inl.h", "int x;\n"))
        self.assertEqual([], messages("kernels/a.cc", "int x;\n" * rules.MAX_LINES))
        self.assertEqual(1, len(messages("kernels/a.cc", "int x;\n" * (rules.MAX_LINES + 1))))
        self.assertEqual(1, len(messages("deploy/a.sh", "# TO" + "DO: later\n")))
        self.assertEqual(1, len(messages("server/a.cc", "// FIX" + "ME\n")))

    def test_comments_are_broken(self):
        words = "word " * 22  # 110 columns with the last space
        self.assertEqual([], messages("kernels/a.cc", f"// {words[3:].strip()}\n"))
        self.assertEqual(["a comment of 112 columns; allowed are 110"], messages("kernels/a.cc", f"// {words.strip()}\n"))
        self.assertEqual(1, len(messages("kernels/a.cc", f"  /// {words}{words}\n")))
        for unbreakable in (f"// name  {words}", f"// https://host/{words}", f"// NOLINTNEXTLINE(check): {words}"):
            self.assertEqual([], messages("kernels/a.cc", unbreakable + "\n"))

    def test_a_bad_tree_is_refused(self):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "kernels", "cpu"))
            os.makedirs(os.path.join(root, "build", "release"))
            with open(os.path.join(root, "kernels", "cpu", "bad.h"), "w", encoding="utf-8") as file:
                file.write('#include "engine/api/engine.h"\n')
            with open(os.path.join(root, "build", "release", "ignored.h"), "w", encoding="utf-8") as file:
                file.write("generated\n")
            found = [str(violation) for violation in rules.check_tree(root)]
        self.assertEqual(2, len(found), found)
        self.assertTrue(all(text.startswith("kernels/cpu/bad.h:1:") for text in found), found)


if __name__ == "__main__":
    unittest.main()
