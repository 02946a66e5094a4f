"""Random calls of the command line, every command and option of it, with values of all kinds.

A call runs in a folder of its own, in a process that is forked from this one, so that libraries are loaded once. It may
take SECONDS and MEMORY. Calls are short by construction: whatever is drawn, the data are a few small images, and what
is left open is filled in from SHORT.

A fault is a traceback, a status that is not documented, a refusal that is not one line, a control character in what is
printed, a file outside the call's folder that changed, and a call that does not end.
"""

import gc
import importlib
import io
import os
import pkgutil
import random
import resource
import shlex
import shutil
import signal
import sqlite3
import sys
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from store_examples import example_run

import asymtrain.lab
from abuse.tally import Tally
from asymtrain.__main__ import main
from asymtrain.lab.cli import COMMANDS, EXITS, REFUSED
from asymtrain.lab.cli.app import load_command
from asymtrain.lab.runs import RunSpec, pairs
from asymtrain.lab.store import Store
from asymtrain.lab.store.exchange import export_store
from asymtrain.lab.texts import printable
from forking import start

AT_ONCE = 2
SECONDS = 60.0  # for one call; most take a fraction of one
WATCHED = 1.0  # seconds after which a page that is served is left with Ctrl-C
# Which may come before a refusal.
REMARKS = ("is damaged, only the rest is read", "nothing counts as done", "Watch it train: ", "training: epoch ")
MEMORY = 2 * 2**30  # beyond what the libraries take
FILE = 256 * 2**20

HOSTILE = "\x1b[31m$a$ [red]=1+1"
NAMES = ["n" * 300, "a/" * 2500, "~nosuchuser/x", "loop", "loop/x", "file.txt", "file.txt/x", "", " ", ".", "-", "%s",
         "/dev/null/x", "/proc/self/nothing/x", os.fsdecode(b"\xff\xfe"), HOSTILE, "\u202ename", "x\ny", "[bold]b[/]",
         "$x$", "=cmd|' /C calc'!A0", "ñ" * 130, "missing", "\x9b2J"]  # fmt: skip
FEW = ["1", "2", "0", "-1", "-0", "1.5", "nan", "inf", "1e400", "x", "", "１", "²", "0x1", " 1", "1e-9", "9" * 5000,
       "\x1b"]  # fmt: skip
MANY = [*FEW, "99999999999", "9" * 30, str(2**31), str(2**63), "1_000_000_000", "10000"]
NUMBERS = ["0.1", "1", "0", "-0", "-1", "nan", "inf", "-inf", "1e400", "1e-400", "1e20", "x", "", "１", "0.1,1", "--"]
SEEDS = ["1", "2", "42,", "1..2", "1..99999999999", "9" * 30, "9" * 5000 + ",", "0", "-1", "5-1", "x", "", "1,,2", "²"]
DEVICES = ["cpu", "cuda", "gpu", "cuda:a", "cuda:99", "", "meta", "mps", "cpu:7", "CPU", "cuda:-1", "xpu", "x" * 300]
WORDS = ["", "x", "all", ",", "[red]", HOSTILE, "=1+1", "$", "n" * 300, os.fsdecode(b"\xff"), "-", "--", "\u2028",
         "nan"]  # fmt: skip
STORES = ["runs.sqlite", "hostile.sqlite", "empty.sqlite", "foreign.sqlite", "cut.sqlite", "damaged.sqlite",
          "nothing.sqlite", "photos", "new/runs.sqlite", *NAMES]  # fmt: skip
FOLDERS = ["new", "new/er", "export", "parquet", "damaged", *NAMES]
DATA = ["folder:photos", "folder:$photos$", "folder:broken", "folder:odd", "folder:", "folder", "cifar10", "shapes9",
        *(f"folder:{name}" for name in NAMES)]  # fmt: skip
VALUES: dict[str, list[str]] = {
    "--data": DATA, "name": [*DATA, "shapes", "cifar100"], "--arch": ["mlp", "vit,cnn", "mlpp", *WORDS],
    "--scale": ["quick", "paper", *WORDS], "--seeds": SEEDS, "--precision": ["fp32", "tf32", "bf16", *WORDS],
    "--device": DEVICES, "--executor": ["local", *WORDS], "--address": WORDS, "--alpha": NUMBERS, "--epochs": FEW,
    "--redundancy": MANY, "--minutes": ["1e-9", "1e-300", "0", "-1", "nan", "inf", "1e400", "x", ""],
    "--data-root": FOLDERS, "--out": FOLDERS, "--states": FOLDERS, "folder": FOLDERS, "--store": STORES,
    "store": STORES, "--set": ["signal=noise", "objective=softmax", "alpha=1", "signal", "=", "signal=x", *WORDS],
    "--run": ["all", "a", "0,1", *WORDS], "--format": ["csv", "parquet", *WORDS], "--every": FEW,
    "--learning-rates": NUMBERS, "--weight-decays": NUMBERS, "--alphas": NUMBERS, "--learning-rate": NUMBERS,
    "--batch": MANY, "--image-size": ["8", *FEW], "--steps": FEW, "--sample": MANY,
    "--images": MANY, "--at": ["1", "0", "0,1", "*", "layers.*", "[", *WORDS],
    "--threshold": NUMBERS, "--draws": FEW, "--grid": FEW, "--step": NUMBERS, "--norm-step": NUMBERS,
    "--fixed-weight-decay": NUMBERS, "--filter-step": NUMBERS, "names": ["table3", "figure2", "all", "tabel1", *WORDS],
    "model": ["mlp", "vit", "mine:tiny", "mine:raises", "mine:leaves", "mine:", "mine:number", "nomodule:x",
              "os:getcwd", "timm:x", "hf:ViTConfig", "hf:config.json", "hf:loop/x.json", "hf:~nosuchuser/c.json",
              "a.b", *NAMES],
    "--arch-option": ["width=4", "depth=1", "=", "x", "a=" + "[" * 100_000, "widths=[8]", "widths=[1e400]", *WORDS],
}  # fmt: skip
SHORT = {"--data": "folder:photos", "--minutes": "1e-9", "--epochs": "1", "--seeds": "1", "--arch": "mlp",
         "--draws": "1", "--grid": "3", "--sample": "4", "--images": "4", "--redundancy": "1"}  # fmt: skip
OWN = {  # where a command has a short value of its own, or none
    "run": {"--minutes": "0.01"}, "tune": {"--minutes": "0.01"},
    "search": {"--minutes": "0.005", "--learning-rates": "0.001"},
    "measure attention": {"--arch": "vit"},
    "measure features": {"--steps": "0,1"}, "paper run": {"--data": "shapes"},
    "paper show": {"--data": "shapes"}, "paper list": {"--data": "shapes"},
}  # fmt: skip
VALUES_OF = {  # where an option means something else
    "paper": {"--data": ["shapes", "cifar", *WORDS], "--epochs": MANY},
    "run": {"--epochs": MANY}, "measure features": {"--steps": ["0,1", *FEW]},
    "measure landscape": {"--redundancy": ["0,1", "1", *FEW]},
}  # fmt: skip


IMAGES = {  # folder: its classes
    "photos": ["cats", "dogs"],
    "$photos$": ["$cats$", "=dogs", "[red]"],
    "odd": ["\x1b[31mcats", os.fsdecode(b"d\xffgs")],
    "broken": ["cats", "dogs"],
}


@dataclass(frozen=True)
class Call:
    """Words of a command line, and what is around it."""

    words: tuple[str, ...]
    data_root: str | None  # $ASYMTRAIN_DATA
    output: str  # where standard output goes: a file, a full disk, or a pipe that nobody reads

    def __str__(self) -> str:
        more = f" ASYMTRAIN_DATA={shlex.quote(self.data_root)}" if self.data_root is not None else ""
        words = " ".join(shlex.quote(word if len(word) < 200 else f"{word[:20]}…x{len(word)}") for word in self.words)
        return printable(f"asymtrain {words}{more}{'' if self.output == 'file' else f' > {self.output}'}")


def run(seed: int, cases: int, folder: Path) -> Tally:
    """Draw the calls and try them, two at a time."""
    tally = Tally("calls", seed)
    given, outside = folder / "given", folder / "outside"
    make_files(outside)
    shutil.copytree(outside, given, symlinks=True, ignore=shutil.ignore_patterns(*IMAGES))
    for name in IMAGES:
        (given / name).symlink_to(outside / name)
    load_libraries(given)
    commands, before = dict(all_commands()), listing(outside, folder)
    running: dict[int, tuple[int, Call, Path, float]] = {}
    numbers = iter(range(cases))
    number: int | None = next(numbers, None)
    while running or number is not None:
        if number is not None and len(running) < AT_ONCE:
            call, place = draw(random.Random(f"{seed} {number}"), commands), folder / "calls" / str(number)
            shutil.copytree(given, place, symlinks=True)
            running[begin(call, place)] = number, call, place, time.monotonic()
            number = next(numbers, None)
            continue
        process, status = os.waitpid(-1, os.WNOHANG)
        if not process:
            for key, (_, call, _, began) in running.items():
                if call.words[:1] == ("watch",) and time.monotonic() - began > WATCHED:
                    os.killpg(key, signal.SIGINT)
            late = [key for key, (*_, began) in running.items() if time.monotonic() - began > SECONDS]
            for process in late:
                os.killpg(process, signal.SIGKILL)
            time.sleep(0.002)
            continue
        case, call, place, began = running.pop(process)
        ended = os.waitstatus_to_exitcode(status)
        faults = faults_of(ended, read(place / "stdout"), read(place / "stderr"), call.output)
        if time.monotonic() - began > SECONDS:
            faults = [f"not over after {SECONDS:g} s"]
        if not running and (after := listing(outside, folder)) != before:  # else it may be the other's
            faults.append(f"changed {sorted(set(after.items()) ^ set(before.items()))[:2]}")
            before = after
        tally.add(f"exit {ended}", f"{'; '.join(faults)}: {call} (seed {seed}, case {case})" if faults else None)
        shutil.rmtree(place, ignore_errors=True)
    return tally


def draw(source: random.Random, commands: dict[str, Any]) -> Call:
    """A call: a command, some of its options with valid or hostile values, and sometimes words out of place."""
    name = source.choice(list(commands))
    command = commands[name]
    values = {**VALUES, **VALUES_OF.get(name.partition(" ")[0], {}), **VALUES_OF.get(name, {})}
    parameters = {parameter.opts[0]: parameter for parameter in command.params}
    arguments = [opt for opt, parameter in parameters.items() if parameter.param_type_name == "argument"]
    options = [opt for opt in parameters if opt not in arguments]
    chosen = [*arguments, *source.sample(options, min(len(options), source.choice([0, 1, 2, 2, 3, 3, 5])))]
    words: list[str] = name.split()
    for opt in chosen:
        if getattr(parameters[opt], "is_flag", False):
            words.append(opt)
            continue
        pool = values.get(opt, WORDS)
        value = pool[0] if source.random() < 0.3 else source.choice(pool)
        words += [value] if opt in arguments else [opt, value]
    if not arguments or name in ("tune", "paper run", "paper show"):
        short = {**SHORT, **OWN.get(name, {})}
        given = {opt: value for opt, value in short.items() if value and opt in options and opt not in chosen}
        words += [word for item in given.items() for word in item]
    if source.random() < 0.05:
        words.insert(
            source.randrange(len(words) + 1), source.choice([*WORDS, "--help", "--version", "-h", "--nothing"])
        )
    if source.random() < 0.03:
        del words[source.randrange(len(words))]
        words += [word for opt in ("--minutes", "--epochs") if opt in options for word in (opt, "x")]  # stays short
    root = source.choice(FOLDERS) if source.random() < 0.05 else None
    return Call(tuple(words), root, source.choices(["file", "full disk", "closed pipe"], [96, 2, 2])[0])


def all_commands() -> list[tuple[str, Any]]:
    """The commands that do something, by the words that call them."""

    def under(name: str, command: Any) -> list[tuple[str, Any]]:
        if not hasattr(command, "list_commands"):
            return [(name, command)]
        return [
            pair
            for child in command.list_commands(None)
            for pair in under(f"{name} {child}", command.get_command(None, child))
        ]

    return [pair for name in COMMANDS for pair in under(name, load_command(name))]


def begin(call: Call, place: Path) -> int:
    """Start the call in its folder."""

    def work() -> None:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        os.chdir(place)
        outputs = [os.open(place / name, os.O_WRONLY | os.O_CREAT) for name in ("stdout", "stderr")]
        if call.output == "full disk":
            outputs[0] = os.open("/dev/full", os.O_WRONLY)
        elif call.output == "closed pipe":
            reader, outputs[0] = os.pipe()
            os.close(reader)
        for number, file in enumerate([os.open(os.devnull, os.O_RDONLY), *outputs]):
            os.dup2(file, number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # what they were knows of other files
        limit(resource.RLIMIT_AS, pages() + MEMORY)
        limit(resource.RLIMIT_FSIZE, FILE)
        environment = {"HOME": str(place), "TMPDIR": str(place), "COLUMNS": "80", "TERM": "dumb"}
        environment |= dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")  # nothing is downloaded
        os.environ.update(environment, ASYMTRAIN_DATA=call.data_root or str(place / "no-data"))
        if hasattr(os, "sched_setaffinity"):  # with one core runs are trained in this process
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        status: Any = 1
        try:
            main(call.words)
        except SystemExit as end:
            status = end.code
        except BaseException:
            traceback.print_exc()
        try:
            sys.stdout.flush()
        except OSError:
            status = 120  # what Python ends with
        sys.stderr.flush()
        os._exit(status or 0)

    return start(work)


def faults_of(status: int, out: bytes, err: bytes, output: str) -> list[str]:
    """What is wrong with the end of a call. Before what is printed meets a full disk, a call may have said more."""
    faults = []
    try:
        texts = [out.decode(), err.decode()]
    except UnicodeDecodeError:
        return ["the output is not UTF-8"]
    said = texts[1].rstrip("\n").split("\n")  # as a terminal does, not at U+2028
    lines = [line for line in said if not any(remark in line for remark in REMARKS)] or [""]
    if "Traceback (most recent call last)" in err.decode():
        faults.append(f"traceback: {next(line for line in reversed(lines) if line.strip())[:160]}")
    elif status not in EXITS:
        faults.append(f"status {status}: {' '.join(lines[-1:])[:160]}")
    elif status == REFUSED and ((len(lines) != 1 and output == "file") or not lines[-1].startswith("asymtrain: ")):
        faults.append(f"refused in {len(lines)} lines: {' | '.join(lines)[:300]}")
    if any(text != printable(text) for text in texts):
        faults.append("a control character in the output")
    return faults


def read(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def limit(kind: int, wanted: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def pages() -> int:
    """Bytes of address space that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def listing(*folders: Path) -> dict[str, tuple[int, int]]:
    """Files by path, with their sizes and times; of the first folder all, of the others what lies directly in them."""
    first, *others = folders
    paths = [*first.rglob("*"), *(path for folder in others for path in folder.glob("*") if path.name != "calls")]
    stats = {str(path): path.lstat() for path in paths}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


def load_libraries(given: Path) -> None:
    """Everything that commands import, so that a forked call has it; some is only imported when it is used."""
    for module in pkgutil.walk_packages(asymtrain.lab.__path__, "asymtrain.lab."):
        if not module.name.endswith(".ray"):
            importlib.import_module(module.name)
    others = ("PIL.Image", "pyarrow.parquet", "torch.utils.tensorboard", "mpl_toolkits.mplot3d", "timm", "transformers")
    for name in others:
        with suppress(ImportError):
            importlib.import_module(name)
    with TemporaryDirectory() as out, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        places, trained = (
            f"--store {given}/runs.sqlite --out {out}",
            f"--data folder:{given}/photos --out {out} --seeds 1",
        )
        for words in (
            *(f"report {places}", f"paper list {places}"),
            f"tune mlp --data-option size=100 --data-option image_size=8 --epochs 1 --minutes 0.05 --out {out}",
            f"measure features {trained} --arch mlp --steps 0,1 --images 4",
            f"measure landscape {trained} --arch mlp --draws 1 --grid 3 --sample 4 --redundancy 1",
        ):
            with suppress(SystemExit):
                main(words.split())
    gc.freeze()  # children would copy the pages of objects that their collector visits


def make_files(folder: Path) -> None:
    """Stores, exports, images and a model: whole, empty, foreign, damaged, and with hostile names."""
    for name, classes in IMAGES.items():
        make_images(folder / name, classes, count=20 if name == "photos" else 3)
    (folder / "broken/cats/0.png").write_bytes(b"\x89PNG\r\n\x1a\nnot an image")
    specs = pairs(RunSpec(epochs=2, dataset="folder:photos", arch_options={"widths": (8,)}), [1, 2])
    with Store(folder / "runs.sqlite") as store:
        for spec in specs:
            store.add(example_run(spec))
        for name in ("export", "damaged"):
            export_store(store, folder / name)
        export_store(store, folder / "parquet", format="parquet")
    (folder / "damaged/runs.csv").write_text("=1+1,\x1b\n")
    hostile = pairs(RunSpec(epochs=1, dataset=f"folder:{HOSTILE}/{'n' * 300}"), [1])
    with Store(folder / "hostile.sqlite") as store:
        for spec in hostile:
            store.add(example_run(spec, device=HOSTILE, path=f"={HOSTILE}"))
        store.request([RunSpec(dataset=HOSTILE, seed=3)])
        store.fail([RunSpec(dataset="=1+1", seed=4)], f"{HOSTILE}\r\x9b2J\u202e")
    with Store(folder / "empty.sqlite"):
        pass
    foreign = sqlite3.connect(folder / "foreign.sqlite")
    foreign.execute("CREATE TABLE notes (text)")
    foreign.commit()
    foreign.close()
    content = (folder / "runs.sqlite").read_bytes()
    (folder / "cut.sqlite").write_bytes(content[: len(content) // 2])
    (folder / "damaged.sqlite").write_bytes(content[:5000] + b"\xff" * 3000 + content[8000:])
    (folder / "nothing.sqlite").touch()
    (folder / "file.txt").write_text("a file\n")
    (folder / "loop").symlink_to("loop")
    (folder / "config.json").write_text('{"model_type": "vit", "hidden_size": "\\u001b"}')
    (folder / "mine.py").write_text(
        "from torch import nn\n"
        "def tiny(classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 4), nn.ReLU(), nn.Linear(4, classes))\n"
        "def leaves():\n    raise SystemExit(7)\n"
        "def raises():\n    raise RuntimeError('line one\\nline \\x1b[31m two')\n"
        "number = 3\n"
    )


def make_images(folder: Path, classes: list[str], count: int) -> None:
    source = random.Random(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.frombytes("RGB", (4, 4), source.randbytes(48)).save(folder / name / f"{number}.png")
