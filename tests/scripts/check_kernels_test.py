"""What the compiler makes of GPU kernels is read from recorded output, and each fault is reported."""

import importlib.util
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("check_kernels", ROOT / "scripts" / "check_kernels.py")
check_kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_kernels)

SCOPE = "_ZN8flotilla7kernels4cuda6device36_GLOBAL__N__984f9c7f_4_r_cu_231de6ea"
PRODUCT = SCOPE + "15MatMulF32KernelINS0_4Bf16EEEvNS1_4ArgsE"
TOP_N = SCOPE + "10TopNKernelENS1_4ArgsE"
# Of cuobjdump -res-usage -sass, shortened.
RECORDED = f"""
member libflotilla_kernels_cuda.a:r.cu.o:

Fatbin elf code:
================
arch = sm_90a
code version = [1,8]
host = linux
compile_size = 64bit

Resource usage:
 Common:
  GLOBAL:0
 Function {PRODUCT}:
  REG:10 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:544 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function {TOP_N}:
  REG:32 STACK:32 SHARED:0 LOCAL:0 CONSTANT[0]:544 TEXTURE:0 SURFACE:0 SAMPLER:0

	code for sm_90a
	.target	sm_90a

		Function : {PRODUCT}
	.headerflags	@"EF_CUDA_ACCELERATORS EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)"
        /*0060*/                   FFMA R5, R0, R5, R7 ;                    /* 0x0000000500057223 */
                                                                            /* 0x004fca0000000007 */
        /*0070*/                   STG.E desc[UR4][R2.64], R5 ;             /* 0x0000000502007986 */
                                                                            /* 0x000fe2000c101904 */
        /*0080*/               @P0 EXIT ;                                   /* 0x000000000000094d */
                                                                            /* 0x000fea0003800000 */
		..........


		Function : {TOP_N}
	.headerflags	@"EF_CUDA_ACCELERATORS EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)"
        /*0370*/              @!P0 STL.64 [R27], R4 ;                       /* 0x000000041b007387 */
                                                                            /* 0x0041e80000100800 */
        /*0bf0*/                   DMUL R4, R4, UR6 ;                       /* 0x0000000604047c28 */
                                                                            /* 0x001fcc0008000000 */
		..........

Fatbin ptx code:
================
arch = sm_90
"""


def kernel(*opcodes, registers=32, shared=0, stack=0, local=0):
    made = check_kernels.Kernel(registers, shared, stack, local)
    made.opcodes.update(opcodes)
    return made


class Kernels(unittest.TestCase):
    def setUp(self):
        self.needed, check_kernels.NEEDED = check_kernels.NEEDED, {"MulKernel": ("IMMA",)}

    def tearDown(self):
        check_kernels.NEEDED = self.needed

    def violations(self, made, limit=(32, 0), name="MulKernel<Bytes>"):
        limits = {(name, "sm_80"): limit} if limit else {}
        return check_kernels.violations({(name, "sm_80"): made}, limits)

    def test_output_is_read(self):
        kernels = check_kernels.parse(RECORDED)
        self.assertEqual(kernels, {
            PRODUCT: kernel("FFMA", "STG", "EXIT", registers=10, shared=1024),
            TOP_N: kernel("STL", "DMUL", stack=32)})
        self.assertEqual(check_kernels.readable(sorted(kernels)),
                         {PRODUCT: "MatMulF32Kernel<Bf16>", TOP_N: "TopNKernel"})

    def test_a_kernel_within_its_limits_passes(self):
        self.assertEqual(self.violations(kernel("IMMA", "FFMA")), [])
        self.assertEqual(self.violations(kernel("IMMA", registers=24), (32, 0)), [])

    def test_each_fault_is_reported(self):
        for made, words in (
            (kernel("IMMA", registers=33), "it has 33 registers, but kernels/cuda/resources.tsv allows 32"),
            (kernel("IMMA", shared=16), "it has 16 bytes of static shared memory"),
            (kernel("IMMA", stack=8), "8 bytes of stack and 0 of local"),
            (kernel("IMMA", local=8), "0 bytes of stack and 8 of local"),
            (kernel("IMMA", "LDL"), "uses LDL"),
            (kernel("IMMA", "DFMA"), "it uses DFMA"),
            (kernel("FFMA"), "it does not use IMMA"),
        ):
            found = self.violations(made)
            self.assertEqual(len(found), 1, found)
            self.assertTrue(found[0].startswith("MulKernel<Bytes>, sm_80: "), found)
            self.assertIn(words, found[0])

    def test_table_and_library_have_the_same_kernels(self):
        self.assertIn("it has no row", *self.violations(kernel("IMMA"), limit=None))
        limits = {("MulKernel", "sm_80"): (32, 0), ("OldKernel", "sm_80"): (32, 0)}
        found = check_kernels.violations({("MulKernel", "sm_80"): kernel("IMMA")}, limits)
        self.assertIn("OldKernel, sm_80: it has a row", *found)
        self.assertIn("MulKernel: it is in NEEDED", *self.violations(kernel(), name="OtherKernel"))

    def test_the_table_comes_back(self):
        text = check_kernels.write_table({("b<X, 2>", "sm_80"): kernel(registers=40, shared=8),
                                          ("a", "sm_90a"): kernel()})
        self.assertEqual(text.splitlines()[1:], ["a\tsm_90a\t32\t0", "b<X, 2>\tsm_80\t40\t8"])
        self.assertEqual(check_kernels.read_table(text),
                         {("b<X, 2>", "sm_80"): (40, 8), ("a", "sm_90a"): (32, 0)})


if __name__ == "__main__":
    unittest.main()
