"""tests/gpu/sass_budget.py finds what it is there to find in listings of machine code."""

import os
import sys
import tempfile
import unittest

from project import ROOT

sys.path.insert(0, os.path.join(ROOT, "tests", "gpu"))
import sass_budget  # noqa: E402

# A loop from 0010 to 0060 with one product; the branch at 0090 goes forwards.
GOOD = """
		Function : _Z6Kernelv
	.headerflags	@"EF_CUDA_SM80"
        /*0000*/                   LDG.E R1, [R2.64] ;                   /* 0x0000000402017981 */
        /*0010*/                   LDGSTS.E.BYPASS.128 [R1], [R2.64] ;   /* 0x0000000402017981 */
                                                                         /* 0x000fe200078e00ff */
        /*0020*/                   LDSM.16.M88.4 R4, [R8] ;              /* 0x0000000402017981 */
        /*0030*/                   HMMA.16816.F32.BF16 R4, R4, R6, R8 ;  /* 0x0000000402017981 */
        /*0040*/                   LDG.E R1, [R2.64] ;                   /* 0x0000000402017981 */
        /*0060*/               @P0 BRA 0x10 ;                            /* 0x0000000402017981 */
        /*0070*/                   LDSM.16.M88.4 R4, [R8] ;              /* 0x0000000402017981 */
        /*0080*/                   STL [R1], R2 ;                        /* 0x0000000402017981 */
        /*0090*/              @!P0 BRA 0xb0 ;                            /* 0x0000000402017981 */
        /*00b0*/                   EXIT ;                                /* 0x0000000402017981 */
"""


def seen(text):
    with tempfile.NamedTemporaryFile("w", suffix=".sass") as file:
        file.write(text)
        file.flush()
        kernels = sass_budget.parse(file.name)
    assert list(kernels) == ["_Z6Kernelv"]
    return sass_budget.look_at("Kernel", kernels["_Z6Kernelv"])


class SassBudgetTest(unittest.TestCase):
    def test_what_is_outside_the_loop_does_not_count(self):
        self.assertEqual(({"HMMA": 1, "LDSM": 1, "LDGSTS.128": 1}, []), seen(GOOD))

    def test_narrow_copies_and_local_memory_in_the_loop(self):
        _, complaints = seen(GOOD.replace("LDGSTS.E.BYPASS.128", "LDGSTS.E.64"))
        self.assertIn("narrower than 128 bits", complaints[0])
        _, complaints = seen(GOOD.replace("LDG.E R1, [R2.64] ;                   /* 0x0000000402017981 */\n        /*0060*/",
                                          "LDL R1, [R2] ;    /* 0x0000000402017981 */\n        /*0060*/"))
        self.assertIn("local memory", complaints[0])

    def test_products_outside_of_every_loop(self):
        _, complaints = seen(GOOD.replace("BRA 0x10", "BRA 0x60"))
        self.assertEqual(["no loop contains tensor-core instructions (HMMA)"], complaints)

    def test_a_narrow_copy_before_the_loop(self):
        _, complaints = seen(GOOD.replace("LDG.E R1, [R2.64] ;", "LDGSTS.E [R1], [R2.64] ;", 1))
        self.assertEqual(["1 copies of tiles are narrower than 128 bits (LDGSTS)"], complaints)

    def test_less_than_the_budget(self):
        found = {("sm_80", "Kernel"): seen(GOOD)}
        def problems(budget):
            return sass_budget.compare(found, budget, sass_budget.below)
        self.assertEqual([], problems({("sm_80", "Kernel"): {"HMMA": 1}}))
        self.assertEqual(["sm_80 Kernel: 1 HMMA; needed: at least 2", "sm_90 Kernel: in the budget, but no kernel"],
                         problems({("sm_80", "Kernel"): {"HMMA": 2}, ("sm_90", "Kernel"): {}}))
        self.assertEqual(["sm_80 Kernel: not in the budget"], problems({}))

    def test_streams_are_counted_in_the_whole_kernel(self):
        listing = [(0, "LDG.E.128", ""), (16, "LDG.E", ""), (32, "STG.E.128", "")]
        self.assertEqual(({"LDG.128": 1, "STG.128": 1}, []), sass_budget.look_at("NormKernel<8>", listing))
        self.assertIsNone(sass_budget.look_at("NormKernel<1>", listing))
