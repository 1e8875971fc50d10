"""The layering checker finds what it must and accepts what is allowed."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_layering  # noqa: E402

FILES = {
    "common/types/ids.h", "common/rt/clock.h", "common/obs/metrics.h", "model/checkpoint.h",
    "kernels/ops.h", "scheduler/core/scheduler.h", "scheduler/server/engine_loop.h",
    "worker/core/sequences.h", "worker/compute/backend.h", "worker/compute/decoder/decoder.h",
    "worker/compute/cpu/cpu_backend.h", "worker/compute/cuda/cuda_backend.h", "worker/device/device.h", "model/spec.h", "worker/exec/executor.h", "router/service.h", "router/core/stop.h",
    "router/grpc/server.h", "router/http/server.h", "cli/flags.h", "proto/codec/request.h",
    "model/gguf/gguf_file.h", "tests/support/model.h", "kernels/cuda/ops.h", "kernels/cuda/simulated/machine.h",
}


def reason(source, include, quoted=True):
    return check_layering.check_include(source, include, quoted, FILES | {source})


class CheckLayering(unittest.TestCase):
    def test_allowed(self):
        for source, include in [
            ("scheduler/core/x.cc", "common/types/ids.h"),
            ("scheduler/core/x.cc", "absl/container/inlined_vector.h"),
            ("scheduler/server/x.cc", "scheduler/core/scheduler.h"),
            ("worker/compute/x.cc", "kernels/ops.h"),
            ("worker/compute/x.cc", "worker/core/sequences.h"),
            ("kernels/cuda/x.cu", "kernels/ops.h"),
            ("kernels/cuda/x.h", "kernels/cuda/simulated/machine.h"),
            ("worker/compute/cuda/x.cc", "worker/device/device.h"),
            ("worker/compute/cuda/x.cc", "worker/compute/backend.h"),
            ("worker/device/x.cc", "kernels/cuda/ops.h"),
            ("worker/exec/x.cc", "worker/device/device.h"),
            ("worker/compute/x.cc", "worker/compute/decoder/decoder.h"),
            ("worker/compute/decoder/x.cc", "worker/compute/backend.h"),
            ("worker/compute/decoder/x.cc", "model/spec.h"),
            ("router/http/x.cc", "router/service.h"),
            ("router/grpc/x.cc", "flotilla/v1/inference.grpc.pb.h"),
            ("proto/codec/x.cc", "flotilla/v1/inference.pb.h"),
            ("router/x.cc", "proto/codec/request.h"),
            ("cli/main.cc", "worker/exec/executor.h"),
            ("cli/main.cc", "router/grpc/server.h"),
            ("tests/cli/x.cc", "cli/flags.h"),
        ]:
            self.assertIsNone(reason(source, include), (source, include))
        self.assertIsNone(reason("scheduler/core/x.cc", "vector", quoted=False))
        self.assertIsNone(reason("kernels/cpu/x.cc", "immintrin.h", quoted=False))
        self.assertIsNone(reason("kernels/cuda/x.cu", "cuda_runtime.h", quoted=False))
        self.assertIsNone(reason("kernels/cuda/simulated/x.cc", "boost/context/fiber.hpp", quoted=False))

    def test_forbidden_folders(self):
        for source, include in [
            ("router/x.cc", "scheduler/core/scheduler.h"),
            ("scheduler/server/x.cc", "router/service.h"),
            ("worker/compute/x.cc", "worker/exec/executor.h"),
            ("worker/compute/x.cc", "worker/device/device.h"),
            ("worker/compute/decoder/x.cc", "worker/device/device.h"),
            ("worker/device/x.cc", "worker/compute/backend.h"),
            ("worker/compute/decoder/x.cc", "kernels/ops.h"),
            ("worker/compute/decoder/x.cc", "common/rt/clock.h"),
            ("worker/group/x.cc", "worker/exec/executor.h"),
            ("scheduler/server/x.cc", "worker/exec/executor.h"),
            ("worker/compute/x.cc", "scheduler/core/scheduler.h"),
            ("kernels/x.cc", "worker/exec/executor.h"),
            ("kernels/x.cc", "model/checkpoint.h"),
            ("kernels/x.cc", "kernels/cuda/ops.h"),
            ("kernels/cuda/x.cu", "common/rt/clock.h"),
            ("model/x.cc", "kernels/ops.h"),
            ("worker/compute/x.cc", "cli/flags.h"),
            ("cli/main.cc", "tests/support/model.h"),
            ("scheduler/core/x.cc", "scheduler/server/engine_loop.h"),
            ("worker/core/x.cc", "model/checkpoint.h"),
            ("router/core/x.cc", "router/service.h"),
            ("router/core/x.cc", "common/rt/clock.h"),
            ("router/x.cc", "router/grpc/server.h"),
            ("common/types/x.h", "common/rt/clock.h"),
        ]:
            self.assertIsNotNone(reason(source, include), (source, include))

    def test_a_container_is_hidden(self):
        for source in ["model/gguf/x.cc", "model/checkpoint.cc", "tests/model/x_test.cc"]:
            self.assertIsNone(reason(source, "model/gguf/gguf_file.h"), source)
        for source in ["model/config.cc", "cli/main.cc", "worker/compute/x.cc", "tests/support/x.cc"]:
            self.assertIn("hidden", reason(source, "model/gguf/gguf_file.h"), source)

    def test_a_backend_is_hidden(self):
        for source in ["worker/compute/cpu/x.cc", "worker/exec/rank.cc", "tests/worker/compute/x.cc"]:
            self.assertIsNone(reason(source, "worker/compute/cpu/cpu_backend.h"), source)
        for source in ["worker/compute/x.cc", "worker/compute/decoder/x.cc", "worker/exec/x.cc",
                       "cli/main.cc", "tests/support/x.cc"]:
            self.assertIn("hidden", reason(source, "worker/compute/cpu/cpu_backend.h"), source)
        for source in ["worker/compute/cuda/x.cc", "worker/exec/rank.cc", "tests/support/x.cc"]:
            self.assertIsNone(reason(source, "worker/compute/cuda/cuda_backend.h"), source)
        for source in ["worker/compute/x.cc", "worker/compute/cpu/x.cc", "worker/exec/x.cc", "cli/main.cc"]:
            self.assertIn("hidden", reason(source, "worker/compute/cuda/cuda_backend.h"), source)

    def test_generated_types_stop_at_the_codec(self):
        for source in ["router/service.cc", "scheduler/server/x.cc", "cli/main.cc", "model/x.cc"]:
            self.assertIn("codec", reason(source, "flotilla/v1/inference.pb.h"))

    def test_cores_are_pure(self):
        for header in ["thread", "mutex", "chrono", "random", "iostream", "atomic"]:
            self.assertIn("pure", reason("worker/core/x.cc", header, quoted=False))
        self.assertIn("pure", reason("scheduler/core/x.h", "absl/time/time.h"))
        self.assertIn("pure", reason("common/types/x.h", "absl/synchronization/mutex.h"))

    def test_libraries(self):
        self.assertIn("boost", reason("scheduler/server/x.cc", "boost/asio.hpp", quoted=False))
        self.assertIn("grpc", reason("model/x.cc", "grpcpp/grpcpp.h", quoted=False))
        self.assertIn("simd", reason("worker/compute/x.cc", "immintrin.h", quoted=False))
        self.assertIn("system", reason("worker/core/x.cc", "unistd.h", quoted=False))
        self.assertIn("cuda", reason("worker/compute/x.cc", "cuda_runtime.h", quoted=False))
        self.assertIn("cuda", reason("worker/compute/cuda/x.cc", "cuda_runtime.h", quoted=False))
        self.assertIsNone(reason("worker/device/x.cc", "cuda_runtime_api.h", quoted=False))
        self.assertIn("absl", reason("kernels/cuda/x.cu", "absl/types/span.h"))
        for source in ["kernels/cuda/x.h", "router/http/x.cc"]:
            self.assertIn("fibers", reason(source, "boost/context/fiber.hpp", quoted=False))

    def test_paths_are_root_relative(self):
        self.assertIn("root-relative", reason("model/x.cc", "gguf.h"))
        self.assertIn("quotes", reason("model/x.cc", "model/checkpoint.h", quoted=False))
        self.assertIsNotNone(reason("elsewhere/x.cc", "vector", quoted=False))

    def test_a_folder_declares_in_its_namespace(self):
        for path, name in [
            ("common/types/x.h", "flotilla"), ("router/x.h", "flotilla::router"),
            ("router/grpc/x.cc", "flotilla::router"), ("kernels/x.h", "flotilla::kernels::reference"),
            ("proto/codec/x.h", "flotilla::codec"), ("model/jinja/x.h", "flotilla::jinja"),
            ("tests/common/x.cc", "flotilla"), ("tests/router/http/x.cc", "flotilla::router"),
            ("tests/proto/codec/x.cc", "flotilla::codec"), ("tests/support/x.h", "flotilla::testing"),
            ("tests/golden/x.cc", "flotilla::testing"), ("tests/bench/x.cc", "flotilla::kernels"),
            ("kernels/cuda/x.cu", "flotilla::kernels::cuda::FLOTILLA_SIMT"),
            ("tests/gpu_check/x.cc", "flotilla::kernels::cuda"),
        ]:
            self.assertIsNone(check_layering.check_namespace(path, name), (path, name))
        for path, name in [
            ("common/types/x.h", "flotilla::router"), ("router/x.h", "flotilla"),
            ("router/x.h", "flotilla::scheduler"), ("worker/exec/x.cc", "flotilla::testing"),
            ("kernels/cuda/x.cu", "flotilla::kernels"),
            ("router/x.h", "flotilla::routers"), ("tests/router/x.cc", "flotilla"),
            ("tests/golden/x.cc", "flotilla"), ("tests/golden/x.cc", "flotilla::worker"),
            ("tests/router/fake.h", "flotilla::testing"), ("router/x.h", "other"),
        ]:
            self.assertIsNotNone(check_layering.check_namespace(path, name), (path, name))
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name) / "model"
            folder.mkdir()
            (folder / "x.h").write_text("namespace flotilla::model {\n}\n")
            self.assertEqual(check_layering.check_tree(name), [])
            (folder / "x.h").write_text("namespace flotilla::jinja {\nstruct Template;\n}\n")
            self.assertEqual(check_layering.check_tree(name), [])
            (folder / "x.h").write_text("namespace flotilla::scheduler {\nstruct Plan;\n}\n")
            self.assertEqual([row[3] for row in check_layering.check_tree(name)],
                             ["model must not announce types of flotilla::scheduler"])
            (folder / "x.h").write_text("namespace flotilla::model {\nnamespace inner {\n}\n"
                                        "}  // namespace flotilla::model\nnamespace other {\n}\n")
            self.assertEqual([row[2] for row in check_layering.check_tree(name)], ["other"])
            (folder / "x.h").write_text("namespace flotilla {\n}\n")
            self.assertEqual([row[1:3] for row in check_layering.check_tree(name)], [(1, "flotilla")])

    def test_nvcc_needs_no_library(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name) / "kernels" / "cuda"
            folder.mkdir(parents=True)
            (folder.parent / "x.h").write_text("#include <immintrin.h>\n")
            (folder / "y.cu").write_text('#include "kernels/x.h"\n')
            self.assertEqual(check_layering.check_tree(name), [])
            (folder.parent / "x.h").write_text('#include "absl/types/span.h"\n')
            self.assertEqual([row[:3] for row in check_layering.check_tree(name)],
                             [("kernels/cuda/y.cu", 1, "absl/types/span.h")])

    def test_a_source_includes_its_own_header_first(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name) / "model"
            folder.mkdir()
            (folder / "x.h").write_text("#include <vector>\n")
            (folder / "x.cc").write_text('#include "model/x.h"\n#include <vector>\n')
            self.assertEqual(check_layering.check_tree(name), [])
            (folder / "x.cc").write_text('#include <vector>\n#include "model/x.h"\n')
            self.assertEqual([row[3] for row in check_layering.check_tree(name)],
                             ["a source includes its own header first"])


if __name__ == "__main__":
    unittest.main()
