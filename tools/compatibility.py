"""What nox.py's session `compat` runs: which package of which version with which other one, and whose tests.

Packages meet in nrl-interfaces only, so a pair is a package and a version of it; the older side's tests are run:

- A package's last release, by its own tests, with nrl-interfaces as it is here: an upgrade of nrl-interfaces alone.
- The last release of nrl-interfaces, by its own tests, as it is here: it only adds. Its tests know no other package, so
  they need not run once for each.
- A package as it is here, by its own tests, with the oldest nrl-interfaces that it allows: nothing else proves the
  floor. With each minor between that and the present one its modules are imported; more follows from the line above.

A pair of which one side is the same as when the other side's tests ran with it is left out.
"""

from pathlib import Path

from environments import ROOT, UV, build, install, pip_install, project
from packaging.requirements import Requirement
from released import Release, differs, releases, unpack

import nox

SHARED = "nrl-interfaces"
IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def check(session: nox.Session, name: str) -> None:
    """Run what the session `compat` has for a package."""
    released = releases(name)
    last = next((release for release in reversed(released) if differs(release, name)), None)
    if not released:
        session.log(f"{name} {project(name)['project']['version']} is not released yet, and no older version was")
    elif last is None:
        session.log(f"{name} is as it was released: {released[-1]}")
    install(session, name, tools=["compat"], wheels=True)
    if last:
        check_api(session, last)
    if name != SHARED:
        check_floor(session, name)
    if last and (name == SHARED or differs(last, SHARED)):
        check_last_release(session, last)


def check_api(session: nox.Session, last: Release) -> None:
    """Compare a package's API with that of its last release."""
    session.log(f"The API as it is here against {last}")
    package = f"packages/{last.name}"
    sources = (str(released_sources(last) / "src"), f"{package}/src")
    session.run("python", "tools/api_breaks.py", last.name, *sources, f"{package}/api-breaks.toml")


def check_floor(session: nox.Session, name: str) -> None:
    """Run a package's quick tests with the oldest nrl-interfaces that it allows; import it with later minors."""
    needs = map(Requirement, project(name)["project"]["dependencies"])
    (allowed,) = (need for need in needs if need.name == SHARED)
    minors: dict[tuple[int, ...], Release] = {}
    for release in releases(SHARED):
        if release.version in allowed.specifier and differs(release, SHARED):
            minors.setdefault(release.version.release[:2], release)
    if not minors:
        session.log(f"{name} needs {allowed}, and of these none is older than what is here")
    here = ROOT / "packages" / name
    for number, release in enumerate(minors.values()):
        session.log(f"{name} as it is here with {release}")
        install_pair(session, here, build(session, name), build_released(session, release))
        if number == 0:
            with session.chdir(here):
                session.run("pytest", "-m", "not slow", *session.posargs)
        else:
            session.run("python", "-I", "-W", "ignore", "-c", IMPORT_ALL, name.replace("-", "_"))


def check_last_release(session: nox.Session, last: Release) -> None:
    """Run the quick tests of a package's last release with nrl-interfaces as it is here."""
    sources, shared = released_sources(last), build(session, SHARED)
    session.log(f"The tests of {last} with {SHARED} as it is here")
    install_pair(session, sources, shared if last.name == SHARED else build_released(session, last), shared)
    with session.chdir(sources):
        session.run("pytest", "-m", "not slow", "tests", *session.posargs)


def install_pair(session: nox.Session, sources: Path, wheel: Path, shared: Path) -> None:
    """Install a package's wheel with extras and groups, and one of nrl-interfaces; uv refuses what does not fit."""
    table = nox.project.load_toml(sources / "pyproject.toml")
    extras = ",".join(table["project"].get("optional-dependencies", {}))
    groups = [f"--group={sources / 'pyproject.toml'}:{group}" for group in table.get("dependency-groups", {})]
    again = [f"--reinstall-package={package}" for package in (table["project"]["name"], SHARED)]
    wheels = (f"{wheel}[{extras}]" if extras else str(wheel), str(shared))
    pip_install(session, Path(session.virtualenv.location), "--no-sources", *again, *groups, *wheels)


def released_sources(release: Release) -> Path:
    """Return the folder with a release's package."""
    return unpack(release, ROOT / ".nox" / "released" / f"{release.name}-{release.version}-{release.commit[:9]}")


def build_released(session: nox.Session, release: Release) -> Path:
    """Return a release's wheel, built at its first use: a commit does not change."""
    sources = released_sources(release)
    if not (built := list(sources.glob("dist/*.whl"))):
        flags = ("--quiet", "--wheel", "--no-sources", f"--out-dir={sources / 'dist'}")
        session.run_install(UV, "build", *flags, str(sources), external=True)
        built = list(sources.glob("dist/*.whl"))
    (wheel,) = built
    return wheel
