"""Every Python that dorfl supports: `pipx run nox`, or `nox -s tests-3.13` for one of them."""

import nox

nox.options.reuse_existing_virtualenvs = True


@nox.session(python=["3.11", "3.12", "3.13"])
def tests(session: nox.Session) -> None:
    """All tests; `nox -s tests-3.13 -- -m "not slow"` passes arguments on."""
    session.install("-c", "constraints.txt", "-e", ".[test]")
    session.run("pytest", "-n", "2", "--dist", "loadgroup", *session.posargs)
