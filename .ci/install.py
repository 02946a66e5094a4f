"""Install this project and some of its extras into the environment of this Python: `python .ci/install.py lab`.

uv does it in less than half of pip's time. It does not read pip's settings, so those that say where packages lie are
handed on: torch's build for CPUs is found in the same places. Where uv cannot be had, or does not manage, pip installs;
INSTALLER=pip in the environment asks for that.
"""

import ast
import os
import shutil
import subprocess
import sys

PIP = [sys.executable, "-m", "pip"]
PLACES = ("find-links", "index-url", "extra-index-url")


def pip_places() -> list[str]:
    """Where pip looks for packages, by its files and its environment, as options of uv."""
    options = []
    for line in subprocess.run([*PIP, "config", "list"], capture_output=True, text=True).stdout.splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name in PLACES:
            options += [f"--{name}={place}" for place in str(ast.literal_eval(value)).split()]
        elif name == "no-index" and ast.literal_eval(value) not in ("0", "false", "no"):
            options.append("--no-index")
    # Like pip: the best version of all places, not that of the first which has the package.
    return [*dict.fromkeys(options), "--index-strategy=unsafe-best-match"]


def uv_install(wanted: list[str]) -> bool:
    """Whether uv could be had and did it."""
    if os.environ.get("INSTALLER") == "pip":
        return False
    uv = shutil.which("uv")
    if uv is None:
        if subprocess.run([*PIP, "install", "--quiet", "uv"], capture_output=True).returncode:
            return False
        uv = shutil.which("uv", path=os.path.dirname(sys.executable))  # noqa: PTH120  (links stay as they are)
    command = [str(uv), "pip", "install", "--quiet", "--python", sys.executable, *pip_places(), *wanted]
    if sys.dont_write_bytecode:  # then, as in many containers, every process would compile all of torch again
        command.append("--compile-bytecode")
    return not subprocess.run(command).returncode


def main() -> None:
    """Install by uv, else by pip."""
    print("installing; most of it is torch, which takes minutes to download where it is not at hand", flush=True)
    wanted = ["--constraint", "constraints.txt", "--editable", f".[{','.join(sys.argv[1:])}]"]
    if not uv_install(wanted):
        print("installing with pip", flush=True)
        sys.exit(subprocess.run([*PIP, "install", "--quiet", *wanted]).returncode)


if __name__ == "__main__":
    main()
