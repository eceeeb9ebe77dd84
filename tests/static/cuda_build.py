"""Compiles csrc/cuda with nvcc and reads what came out: registers from ptxas, instructions from a disassembler."""

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from cuda_kernels import kernel_of, template_arguments

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["-std=c++20", "-O3", f"-I{ROOT / 'csrc'}", "-Werror", "all-warnings", "-Xptxas", "-v"]
SOURCES = sorted((ROOT / "csrc" / "cuda").glob("*.cu"), key=lambda path: path.stat().st_size)
CHIPS = ("80", "90")
GENERATE = ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=[sm_90,compute_90]"]
JOBS = 2


@dataclass(frozen=True)
class Entry:
    """One instantiation on one chip, as ptxas reports it; bytes but for `registers`."""

    chip: str
    mangled: str
    function: str  # demangled
    stack: int
    spill_stores: int
    spill_loads: int
    registers: int
    static_shared: int

    @property
    def kernel(self):
        return kernel_of(self.function)

    @property
    def arguments(self):
        return template_arguments(self.function)


@dataclass(frozen=True)
class Budget:
    max_registers: int
    threads: int
    shared: int  # sizeof the kernel's Smem

    @property
    def blocks(self):
        """That share a multiprocessor, as far as registers go: 64 Ki of them."""
        return 65536 // (self.max_registers * self.threads)


def find_nvcc():
    """nvcc's path, or None."""
    home = os.environ.get("CUDA_HOME")
    return shutil.which("nvcc") or (shutil.which("nvcc", path=f"{home}/bin") if home else None)


def find_tool(name):
    """Path of cuobjdump or nvdisasm: of the package nvidia-cuda-<name>, else of the toolkit; None without either."""
    try:
        files = metadata.files(f"nvidia-cuda-{name}") or []
    except metadata.PackageNotFoundError:
        files = []
    found = [str(file.locate()) for file in files if file.name in (name, f"{name}.exe")]
    return found[0] if found else shutil.which(name)


def compile_source(path, folder):
    """The object's path, ptxas' log and the processor seconds that it took."""
    target, log = folder / f"{path.stem}.o", folder / f"{path.stem}.log"
    with log.open("w") as output:
        command = [find_nvcc(), "-c", path, "-o", target, *FLAGS, *GENERATE]
        process = subprocess.Popen(command, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, log.read_text()
    return target, log.read_text(), usage.ru_utime + usage.ru_stime


def compile_all(folder):
    """compile_source's results for SOURCES, the largest first; two at a time."""
    with ThreadPoolExecutor(JOBS) as pool:
        return list(pool.map(lambda path: compile_source(path, folder), reversed(SOURCES)))


def makespan(seconds, jobs=JOBS):
    """When the last of these tasks ends if `jobs` workers take them in order, each as soon as it is free."""
    workers = [0.0] * jobs
    for task in seconds:
        workers[workers.index(min(workers))] += task
    return max(workers)


def demangle(name):
    return subprocess.run(["c++filt", name], capture_output=True, text=True, check=True).stdout.strip()


def parse_ptxas(log):
    """Entries from what `nvcc -Xptxas -v` printed."""
    entries = []
    for block in log.split("Compiling entry function")[1:]:
        mangled, chip = re.match(r" '(\w+)' for 'sm_(\d+)", block).groups()
        own = block[block.index(f"Function properties for {mangled}\n") :]
        memory = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", own)
        used = re.search(r"Used (\d+) registers([^\n]*)", own)
        static = re.search(r"(\d+) bytes smem", used[2])
        numbers = map(int, (*memory.groups(), used[1], static[1] if static else 0))
        entries.append(Entry(chip, mangled, demangle(mangled), *numbers))
    return entries


def parse_sass(text):
    """{(chip, mangled name): opcodes in order, predicates and operands left out} from `cuobjdump -sass`."""
    functions, chip, opcodes = {}, None, None
    for line in text.splitlines():
        if found := re.search(r"arch = sm_(\d+)", line):
            chip = found[1]
        elif found := re.search(r"Function : (\w+)", line):
            opcodes = functions.setdefault((chip, found[1]), [])
        elif found := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", line):
            opcodes.append(found[1])
    return functions


def disassemble(target):
    """parse_sass of an object. cuobjdump looks for nvdisasm on the PATH."""
    folders = os.pathsep.join(str(Path(find_tool(name)).parent) for name in ("cuobjdump", "nvdisasm"))
    environment = os.environ | {"PATH": f"{folders}{os.pathsep}{os.environ['PATH']}"}
    command = [find_tool("cuobjdump"), "-sass", target]
    return parse_sass(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)


def embedded_ptx(target):
    """Names of the PTX files in an object."""
    command = [find_tool("cuobjdump"), "-lptx", target]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def read_budgets(entries, folder):
    """{(kernel, arguments): Budget}: constants and sizeof of the configurations, asked of a C++ compiler.

    The host compiler sees the same text as nvcc (docs/emulator.md), and can run what it compiles.
    """
    questions = list({(entry.kernel, tuple(entry.arguments)): None for entry in entries})
    headers = "".join(f'#include "kernels/{path.name}"\n' for path in (ROOT / "csrc" / "kernels").glob("*.cuh"))
    lines = []
    for kernel, arguments in questions:
        config, shared = kernel.config.format(*arguments), kernel.shared.format(*arguments)
        lines.append(f"  print<{config}>({f'sizeof({shared})' if shared else 0});")
    probe = folder / "budgets.cpp"
    probe.write_text(PROBE.replace("HEADERS", headers).replace("QUESTIONS", "\n".join(lines)))
    program = folder / "budgets"
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, "-std=c++20", "-w", f"-I{ROOT / 'csrc'}", probe, "-o", program]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    answers = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    return {key: Budget(*map(int, answer.split())) for key, answer in zip(questions, answers, strict=True)}


PROBE = """#include <cstdio>
HEADERS
namespace regrow {
template <class Config>
void print(size_t shared) {
  int max_registers = 0;
  if constexpr (requires { Config::kMaxRegisters; })
    max_registers = Config::kMaxRegisters;
  else
    max_registers = Config::kTable.max_registers();
  std::printf("%d %d %zu\\n", max_registers, int(Config::kThreads), shared);
}
}  // namespace regrow
using namespace regrow;
int main() {
QUESTIONS
}
"""
