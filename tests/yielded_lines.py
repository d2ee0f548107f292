"""Which `yield`s of a module's generators a test has reached: none may be without a case."""

import ast
import inspect


def lines_of(generator):
    """(file, line) of the innermost `yield` behind each item of a generator that may hand on others' items."""
    for _ in generator:
        inner = generator
        while inner.gi_yieldfrom is not None:
            inner = inner.gi_yieldfrom
        yield inner.gi_code.co_filename, inner.gi_frame.f_lineno


def lines_that_yield(*modules) -> set[tuple[str, int]]:
    """(file, line) of each `yield` in the source of some modules."""
    return {
        (module.__file__, node.lineno)
        for module in modules
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Yield)
    }
