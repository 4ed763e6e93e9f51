"""Solvers and factorisations of square systems, by LAPACK's counts: half of the FLOPs are products; Fourier transforms.

The counts are those of LAPACK Working Note 41, with A (..., n, n) and B (..., n, columns). Methods
that iterate until they converge have no count, and are unmeasured.
"""

from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.role import Role, shapes
from pytest_modelbudget.ops.rule import Attributes, Contraction, Formula, OpRule, under

WINDOW = Role("window")
COUNT = "LAPACK's count: "
BESIDE = frozenset({"pivots"})  # the order of rows


def _systems(a: Tensor) -> tuple[int, int]:
    """(how many, n) of square matrices (..., n, n)."""
    return _matrices(a), a.shape[-1]


def _matrices(a: Tensor) -> int:
    """How many matrices (..., m, n)."""
    return a.elements // max(a.shape[-2] * a.shape[-1], 1)


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
    return _matrices(a) * each


def qr_macs(*, a: Tensor, attributes: Attributes) -> int:
    """The reflectors of a (..., m, n), and Q (..., m, k), or (..., m, m) in the mode "complete"; "r" needs none."""
    rows, columns = a.shape[-2:]
    k, mode = min(rows, columns), attributes.get("mode", "reduced")
    reflectors = (3 * k**2 * max(rows, columns) - k**3) // 3
    if mode == "r":
        return _matrices(a) * reflectors
    wide = rows if mode == "complete" else k
    return _matrices(a) * (reflectors + (6 * rows * wide * k - 3 * (rows + wide) * k**2 + 2 * k**3) // 3)


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
    matrices = tuple(word for word in words if word not in BESIDE)
    multiplied = matrices if len(matrices) > 1 else matrices * 2  # a single one by itself
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
    _solved("aten::linalg_inv aten::linalg_inv_ex aten::inverse com.microsoft::Inverse", "a", "2 · n³", inverse_macs),
    _solved("aten::linalg_cholesky aten::linalg_cholesky_ex", "a", "1/3 · n³", cholesky_macs),
    _solved(
        "det linalg_det _linalg_det slogdet linalg_slogdet _linalg_slogdet Det",
        "a",
        "2/3 · n³ of the LU factors",
        lu_macs,
    ),
    _solved("aten::linalg_qr", "a", "2 · m · n² - 2/3 · n³ for reflectors, and those of Q", qr_macs),
    _solved(
        "aten::linalg_lu_factor aten::linalg_lu_factor_ex aten::linalg_lu", "a", "2/3 · n³ of square matrices", lu_macs
    ),
    _iterated(
        "aten::linalg_svd aten::_linalg_svd aten::linalg_svdvals aten::linalg_eig "
        "aten::linalg_eigvals aten::linalg_eigh aten::_linalg_eigh aten::linalg_eigvalsh "
        "aten::linalg_pinv aten::linalg_lstsq aten::linalg_matrix_exp aten::linalg_polar aten::linalg_matrix_sqrth",
        "a",
        "b",
        "c",
    ),
    OpRule(
        "fft",
        under(
            "fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn "
            "fft_ifftn fft_rfftn fft_irfftn _fft_r2c _fft_c2r _fft_c2c stft istft",
            ("x", WINDOW),
        )
        | under("DFT", "x", shapes("count axis"))
        | under("STFT", "x", shapes("steps"), WINDOW, shapes("count")),
        "butterflies, not a contraction; a formula for one algorithm would not hold for another",
        flops=None,
    ),
)
