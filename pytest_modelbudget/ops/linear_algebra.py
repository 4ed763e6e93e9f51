"""Solvers and factorisations of square systems, by LAPACK's counts: half of the FLOPs are products.

The counts are those of LAPACK Working Note 41, with A (..., n, n) and B (..., n, columns). Methods
that iterate until they converge have no count, and are unmeasured.
"""

from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.rule import Contraction, Formula, OpRule, under

COUNT = "LAPACK's count: "


def _systems(a: Tensor) -> tuple[int, int]:
    """(how many, n) of square matrices (..., n, n)."""
    n = a.shape[-1]
    return a.elements // max(n * a.shape[-2], 1), n


def substitution_macs(*, a: Tensor, out: Tensor) -> int:
    """One triangle, n²/2 products for each column of the result."""
    return out.elements * a.shape[-1] // 2


def two_substitutions_macs(*, out: Tensor, a: Tensor) -> int:
    """Two triangles, n² products for each column."""
    return out.elements * a.shape[-1]


def cholesky_macs(*, a: Tensor) -> int:
    """n³/6 products."""
    count, n = _systems(a)
    return count * n**3 // 6


def lu_macs(*, a: Tensor) -> int:
    """n³/3 products; of m rows and n columns m·n·k - (m + n)·k²/2 + k³/3 with k the smaller."""
    rows, columns = a.shape[-2:]
    k = min(rows, columns)
    each = rows * columns * k - (rows + columns) * k**2 // 2 + k**3 // 3
    return a.elements // max(rows * columns, 1) * each


def solve_macs(*, a: Tensor, out: Tensor) -> int:
    """An LU factorisation, then two triangles for each column."""
    return lu_macs(a=a) + out.elements * a.shape[-1]


def inverse_macs(*, a: Tensor) -> int:
    """n³ products: factors, and n columns."""
    count, n = _systems(a)
    return count * n**3


def _iterated(names: str, *roles: str) -> OpRule:
    return OpRule(
        "factorisation",
        under(names, *roles),
        "iterates until it converges: no formula gives its products",
        macs=None,
        flops=None,
    )


def _solved(names: str, roles: str, because: str, macs: Formula) -> OpRule:
    words = tuple(roles.split())
    multiplied = words if len(words) > 1 else words * 2  # a single one by itself
    return OpRule("solve", under(names, *words), COUNT + because, macs=macs, contracts=Contraction(None, multiplied))


LINEAR_ALGEBRA: tuple[OpRule, ...] = (
    _solved("aten::linalg_solve_triangular", "a b", "n² · columns", substitution_macs),
    _solved("aten::triangular_solve", "b a", "n² · columns", substitution_macs),
    _solved("aten::cholesky_solve", "b a", "2 · n² · columns", two_substitutions_macs),
    _solved("aten::linalg_lu_solve", "a pivots b", "2 · n² · columns", two_substitutions_macs),
    _solved(
        "aten::linalg_solve aten::linalg_solve_ex aten::_linalg_solve_ex",
        "a b",
        "2/3 · n³ + 2 · n² · columns",
        solve_macs,
    ),
    _solved("aten::linalg_inv aten::linalg_inv_ex aten::inverse", "a", "2 · n³", inverse_macs),
    _solved("aten::linalg_cholesky aten::linalg_cholesky_ex", "a", "1/3 · n³", cholesky_macs),
    _solved(
        "aten::linalg_lu_factor aten::linalg_lu_factor_ex aten::linalg_lu", "a", "2/3 · n³ of square matrices", lu_macs
    ),
    _iterated(
        "aten::linalg_svd aten::_linalg_svd aten::linalg_svdvals aten::linalg_eig "
        "aten::linalg_eigvals aten::linalg_eigh aten::_linalg_eigh aten::linalg_eigvalsh "
        "aten::linalg_pinv aten::linalg_lstsq aten::linalg_matrix_exp",
        "a",
        "b",
        "c",
    ),
)
