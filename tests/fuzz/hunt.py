"""Looking for inputs: atheris and libFuzzer around one target, the corpus it leaves, what that reaches.

Only `hunt` needs atheris. Coverage leads it, so the broker must be imported by it and by nobody before.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.fuzz.target import Target

NAMES = ("packets", "frames", "heads", "topics", "conversations", "files", "lives")
MEMORY = 1024  # MiB that one process may take
TOO_LONG = 25  # seconds for one input
OPTIMIZED = 0x1  # a code object of a function; class bodies and modules run at import


def load(name: str) -> Target:
    target: Target = import_module(f"tests.fuzz.{name}").TARGET
    return target


def hunt(name: str, found: Path, seconds: int, more: Sequence[str] = ()) -> None:
    """Look for *seconds* from the corpus and *found* on, and exit. New inputs and crashes go to *found*."""
    import atheris  # type: ignore[import-not-found,unused-ignore]

    with atheris.instrument_imports(include=["broker"]):
        target = load(name)
    arguments = [f"{sys.executable} -m tests.fuzz {name}", *_flags(target, found), *more]
    if not any(argument.startswith("-merge") for argument in more):
        arguments += [f"-max_total_time={seconds}", *_folders(target, found)]

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        return target.mutate(data, most, seed, atheris.Mutate)

    atheris.Setup(arguments, target.run, custom_mutator=mutate, custom_crossover=target.cross)
    atheris.Fuzz()


def _flags(target: Target, found: Path) -> Iterator[str]:
    (found / "inputs").mkdir(parents=True, exist_ok=True)
    words = found / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
    yield f"-artifact_prefix={found}/"
    yield f"-rss_limit_mb={MEMORY}"
    yield f"-timeout={TOO_LONG}"
    yield f"-max_len={target.longest}"
    if target.words:
        yield f"-dict={words}"


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def _folders(target: Target, found: Path) -> Iterator[str]:
    """The first is where new inputs go."""
    seeds = found / "seeds"
    write_seeds(target, seeds)
    yield from map(str, (found / "inputs", seeds))
    yield from (str(folder) for folder in target.kept if folder.is_dir())


def write_seeds(target: Target, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (folder / f"{number:03}").write_bytes(seed)


def grow(name: str, found: Path) -> None:
    """Make the corpus anew: the fewest and shortest of it, the seeds and *found* that reach what all do."""
    target = load(name)
    corpus = target.kept[0]
    corpus.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        new, seeds = Path(scratch, "new"), Path(scratch, "seeds")
        new.mkdir()
        write_seeds(target, seeds)
        (found / "inputs").mkdir(parents=True, exist_ok=True)
        folders = map(str, (new, corpus, seeds, found / "inputs"))
        command = [sys.executable, "-m", "tests.fuzz", name, f"--found={found}", "-merge=1", *folders]
        command += ["-use_counters=0"] * target.frugal
        subprocess.run(command, check=True)
        shutil.rmtree(corpus)
        shutil.copytree(new, corpus)


# ---- what the corpus reaches


def tell_lines(name: str) -> None:
    """Print how many lines of functions of each module the kept inputs run, and which they do not."""
    target = load(name)
    modules = [import_module(f"broker.{module}") for module in target.covers]
    files = {str(module.__file__): set[int]() for module in modules}
    inputs = [path.read_bytes() for path in target.inputs()]
    tracer = _tracer(files)
    threading.settrace(tracer)
    sys.settrace(tracer)
    for data in inputs:
        target.run(data)
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    print(f"{name}: {len(inputs)} inputs, {sum(map(len, inputs))} bytes")
    total = [0, 0]
    for module, (file, seen) in zip(target.covers, files.items(), strict=True):
        wanted = set(_lines(compile(Path(file).read_text(), file, "exec")))
        total = [total[0] + len(wanted & seen), total[1] + len(wanted)]
        missed = " ".join(map(str, sorted(wanted - seen)))
        print(f"  {module:24} {len(wanted & seen):4} of {len(wanted):4} lines; not {missed or 'one missed'}")
    print(f"  {'together':24} {total[0]:4} of {total[1]:4} lines, {100 * total[0] / total[1]:.1f} %")


def _tracer(files: dict[str, set[int]]) -> Callable[..., Any]:
    def on_call(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        seen = files.get(frame.f_code.co_filename)
        if seen is None:
            return None

        def on_line(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            seen.add(frame.f_lineno)
            return on_line

        return on_line(frame, event, argument)

    return on_call


def _lines(code: CodeType) -> Iterator[int]:
    """The lines of all functions in *code*, without those of their heads."""
    if code.co_flags & OPTIMIZED:
        yield from (line for _, _, line in code.co_lines() if line and line != code.co_firstlineno)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines(constant)
