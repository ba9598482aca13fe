# /// script
# requires-python = ">=3.11"
# dependencies = ["nox>=2026.4", "uv>=0.13"]
# ///
"""Every check that people and CI run.

`python3 nox.py` needs python3 and nothing else: it makes its own small environment with nox and uv. From an environment
that has nox, `nox -f nox.py` and `python -m nox -f nox.py` do the same. `python3 nox.py --list` shows the sessions.

A package under packages/ needs no line here: sessions find it by its folder and read the rest from its pyproject.toml.
"""

import argparse
import datetime as dt
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

if not (3, 11) <= sys.version_info[:2] <= (3, 14):
    sys.exit(f"nox.py: uv.lock is for Python 3.11 to 3.14, this is {sys.version.split()[0]}. As in: python3.11 nox.py")

ROOT = Path(__file__).resolve().parent


# ---- Starting ----


def unhide_nox() -> None:
    """Let `import nox` find the package: Python puts a script's folder first on its path, and finds this file there."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
    sys.modules.pop("nox", None)


def has(requirements: list[str]) -> bool:
    """Tell whether this interpreter has the packages, new enough."""
    try:
        from packaging.requirements import Requirement  # comes with nox

        needs = [Requirement(text) for text in requirements]
        return all(need.specifier.contains(importlib.metadata.version(need.name)) for need in needs)
    except ImportError:  # PackageNotFoundError is one
        return False


def bootstrap(requirements: list[str]) -> Path:
    """Make .nox/bootstrap with nox and uv, or keep the one that is there, and return its interpreter."""
    home = ROOT / ".nox" / "bootstrap"
    python, stamp = home / "bin" / "python", home / "made-from"
    made_from = f"{sys.version}\n{requirements}\n"
    if not (python.exists() and stamp.exists() and stamp.read_text() == made_from):
        print(f"nox.py: making {home.relative_to(ROOT)} with {' and '.join(requirements)}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
        stamp.write_text(made_from)
    return python


def start() -> None:
    """Run nox on this file: here where nox and uv are at hand, else in an environment made for them."""
    header = re.search(r"^# dependencies = (\[.*\])$", Path(__file__).read_text(), re.MULTILINE)
    assert header is not None
    requirements: list[str] = json.loads(header[1])
    if not has(requirements):
        try:
            python = bootstrap(requirements)
        except subprocess.CalledProcessError as error:
            sys.exit(f"nox.py: {error}\nIt needs python3 with the venv module (Debian: apt install python3-venv).")
        os.execv(python, [str(python), __file__, *sys.argv[1:]])
    sys.argv = ["nox", "--noxfile", str(ROOT / "nox.py"), *sys.argv[1:]]
    import nox

    sys.exit(nox.main())


if __name__ in {"__main__", "nox"}:
    unhide_nox()
if __name__ == "__main__":  # also for `python -m nox`; nox then loads this file again, under another name
    start()

import nox  # noqa: E402

sys.path.insert(0, str(ROOT / "tools"))
import bump  # noqa: E402
import compatibility  # noqa: E402
import compatibility_page  # noqa: E402
from environments import (  # noqa: E402
    PACKAGES,
    UV,
    build,
    check_lock,
    clear,
    install,
    pip_install,
    project,
    torch_at_hand,
    without_addresses,
)

nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True  # a pytest or ruff from elsewhere would prove nothing
nox.options.sessions = ["lint", "types", "tests", "wheels", "integration"]
# Imports cost three times more without bytecode. Compiling it at installation costs more than it saves.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Not session.create_tmp(): it sets TMPDIR, and below a long TMPDIR the paths of Ray's sockets are too long for them.
SCRATCH = ROOT / ".nox" / "scratch"

each_package = nox.parametrize("package", [nox.param(name, id=name) for name in PACKAGES])


# ---- Sessions of the default run ----


@nox.session
def lint(session: nox.Session) -> None:
    """Check that uv.lock is up to date, then style and format (ruff; `-- --fix` repairs)."""
    check_lock(session)
    install(session, tools=["lint"])
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", *([] if "--fix" in session.posargs else ["--check"]))


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of packages/*/src (pyright, strict)."""
    install(session, *PACKAGES, tools=["types"])
    sources = [f"packages/{name}/src" for name in PACKAGES]  # named, so that a missing one is an error
    session.run("pyright", f"--pythonpath={Path(session.bin, 'python')}", *sources, *session.posargs)


@nox.session
@each_package
def tests(session: nox.Session, package: str) -> None:
    """Run a package's tests where nothing is installed but what it declares."""
    install(session, package)
    session.chdir(f"packages/{package}")
    session.run("pytest", *session.posargs)


@nox.session
@each_package
def wheels(session: nox.Session, package: str) -> None:
    """Run the README's examples with a package's wheel alone, then the sdist's quick tests against the wheel."""
    wheel, scratch = build(session, package), SCRATCH / package
    scratch.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        files = archive.namelist()
    if missing := [name for name in ("/py.typed", "/licenses/LICENSE") if not any(f.endswith(name) for f in files)]:
        session.error(f"{wheel.name} lacks {missing}; it has {files}")

    clean = Path(f"{session.virtualenv.location}-clean")
    install(session, package, extras=False, groups=False, wheels=True, where=clean)
    examples = (str(clean / "bin" / "python"), "-I", "tools/readme_example.py", f"packages/{package}/README.md")
    session.run(*examples, external=True, env={"RAY_AUTH_MODE": "disabled"})  # Ray would write a token at home

    install(session, package, wheels=True)
    (sdist,) = wheel.parent.glob("*.tar.gz")
    unpacked = scratch / sdist.name.removesuffix(".tar.gz")
    shutil.rmtree(unpacked, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch, filter="data")
    session.chdir(unpacked)
    settings = ("-c", str(ROOT / "pyproject.toml"), "--rootdir=.")  # an sdist has no root above it to find them in
    session.run("pytest", *settings, "-m", "not slow", "tests", *session.posargs)


@nox.session
def integration(session: nox.Session) -> None:
    """Run tests-integration with every package installed as a wheel."""
    install(session, *PACKAGES, groups=False, tools=["integration", "quickstart"], wheels=True)
    session.run("pytest", "tests-integration", *session.posargs)


# ---- Other sessions ----


@nox.session
def quickstart(session: nox.Session) -> None:
    """Install every package as a wheel and run the main job (`-- --help` shows its options)."""
    install(session, *PACKAGES, groups=False, tools=["quickstart"], wheels=True)
    session.run("python", "docs/examples/quickstart.py", *session.posargs)


@nox.session
@each_package
def minimums(session: nox.Session, package: str) -> None:
    """Run a package's quick tests with the lowest versions it declares.

    Of torch: with the one at hand, if there is one; older builds are large. Of the dependency groups only `dev` comes
    along: others need newer versions of what the package declares, and would hide a floor that is too low.
    """
    where, folder, torch = Path(session.virtualenv.location), f"packages/{package}", torch_at_hand()
    clear(session, where)
    constraints = where / "constraints.txt"
    constraints.write_text(f"torch=={torch}\n" if torch else "")
    lowest = ("--resolution=lowest-direct", "-r", f"{folder}/pyproject.toml", "-c", str(constraints))
    pip_install(session, where, *lowest, "--all-extras", f"--group={folder}/pyproject.toml:dev")
    pip_install(session, where, "--no-deps", f"--editable={folder}")
    session.run(UV, "pip", "list", "--quiet", f"--python={where}", external=True)
    session.chdir(folder)
    session.run("pytest", "-m", "not slow", *session.posargs)


@nox.session
@each_package
def declared(session: nox.Session, package: str) -> None:
    """Compare what a package imports with what it declares (deptry)."""
    install(session, package, tools=["declared"])  # the package too: its environment tells which module is whose
    session.chdir(f"packages/{package}")
    session.run("deptry", "--no-ansi", "src", *session.posargs)


@nox.session
@each_package
def compat(session: nox.Session, package: str) -> None:
    """Hold a package to released versions: of itself by tests and API (griffe), of nrl-interfaces by its own tests."""
    try:
        compatibility.check(session, package)
    except ValueError as error:  # of git, or of what it has
        session.error(str(error))


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site with warnings as errors, then run the examples in its pages, the READMEs and the docstrings."""
    install(session, *PACKAGES, tools=["docs"])
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html")
    # docs/conftest.py finds the examples. As a plugin: a conftest.py is not asked about files outside of its folder.
    pages = ["docs", "README.md", *(f"packages/{name}/README.md" for name in PACKAGES)]
    as_plugin = ("-p", "conftest", "--noconftest")
    session.run("pytest", *as_plugin, *pages, *session.posargs, env={"PYTHONPATH": str(ROOT / "docs")})
    sources = [f"packages/{name}/src" for name in PACKAGES]
    # One docstring starts Ray, which would write a token into the home folder.
    session.run("pytest", "--doctest-modules", *sources, success_codes=[0, 5], env={"RAY_AUTH_MODE": "disabled"})


@nox.session
def bench(session: nox.Session) -> None:
    """Run packages/*/benchmarks/bench_*.py and write the Markdown that they print to docs/benchmarks.md."""
    install(session, *PACKAGES, tools=["bench"])
    SCRATCH.mkdir(parents=True, exist_ok=True)
    draft = SCRATCH / "benchmarks.md"
    env = {
        "PYTHONPATH": str(ROOT / "tools"),
        "RAY_AUTH_MODE": "disabled",
    }  # Ray would write a token into the home folder
    with draft.open("w") as page:
        page.write(f"# Benchmarks\n\n{conditions(session)}\n")
        for script in sorted(ROOT.glob("packages/*/benchmarks/bench_*.py")):
            page.write("\n")
            page.flush()
            command = ("python", str(script.relative_to(ROOT)), *session.posargs)
            session.run(*command, stdout=page, stderr=sys.stderr, env=env)
    print(draft.read_text())
    shutil.copyfile(draft, "docs/benchmarks.md")


def conditions(session: nox.Session) -> str:
    """Say what a run of the benchmarks stands on: system, cores, Python, and versions of what the packages declare."""
    tables = [project(name)["project"] for name in PACKAGES]
    lists = [
        part for table in tables for part in (table["dependencies"], *table.get("optional-dependencies", {}).values())
    ]
    names = {re.split(r"[^\w.-]", text)[0].lower() for text in sum(lists, PACKAGES)}
    command = (UV, "pip", "list", "--quiet", "--format=json", f"--python={session.virtualenv.location}")
    listed = json.loads(str(session.run(*command, external=True, silent=True, log=False)))
    versions = ", ".join(f"{item['name']} {item['version']}" for item in listed if item["name"] in names)
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return f"One run of `python3 nox.py -s bench` on {system}, with {versions}."


@nox.session(venv_backend="none")
def dev(session: nox.Session) -> None:
    """Make .venv: every package editable, what they declare, and the tools of all sessions."""
    tools = nox.project.load_toml(ROOT / "pyproject.toml")["dependency-groups"]
    install(session, *PACKAGES, tools=list(tools), where=ROOT / ".venv")


@nox.session(venv_backend="none")
def lock(session: nox.Session) -> None:
    """Lock again, keeping pins (`-- --upgrade` or `-- --upgrade-package NAME` moves them; `-- --check` only looks)."""
    if "--check" in session.posargs:
        check_lock(session)
        return
    # Wheels in a folder that uv is told of would get into the lock.
    session.run(UV, "lock", *session.posargs, env={"UV_FIND_LINKS": None}, external=True)
    path = ROOT / "uv.lock"
    path.write_text(without_addresses(path.read_text()))


@nox.session(venv_backend="none")
def release(session: nox.Session) -> None:
    """Set a new version of a package and date it in its changelog: `-- NAME X.Y.Z [--date YYYY-MM-DD]`."""
    parser = argparse.ArgumentParser(prog="python3 nox.py -s release --")
    parser.add_argument("name")
    parser.add_argument("version")
    parser.add_argument("--date", default=dt.date.today().isoformat(), help="YYYY-MM-DD; today if not given")
    args = parser.parse_args(session.posargs)
    try:
        tag = bump.bump(args.name, args.version, args.date)
    except ValueError as error:
        session.error(str(error))
    compatibility_page.main([])
    check_lock(session)
    print(f"Look at `git diff`, then: git commit -am 'Release {args.name} {args.version}' && git tag {tag}")
