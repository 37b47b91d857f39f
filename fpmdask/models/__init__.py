"""Time as a function of units: what is known of one worker that runs one kernel."""

from typing import TYPE_CHECKING

from fpmdask.lazy_names import lazy

if TYPE_CHECKING:
    from fpmdask.models.akima import AkimaModel as AkimaModel
    from fpmdask.models.analytic import AnalyticModel as AnalyticModel
    from fpmdask.models.base import Model as Model
    from fpmdask.models.constant import ConstantModel as ConstantModel
    from fpmdask.models.measured import MeasuredModel as MeasuredModel
    from fpmdask.models.piecewise import PiecewiseLinearModel as PiecewiseLinearModel
    from fpmdask.models.stored import from_json as from_json
    from fpmdask.models.surface import SurfaceModel as SurfaceModel
    from fpmdask.models.tabulated import TabulatedModel as TabulatedModel

# Workers need none but the base: on a fifth of a core all of them take 0.07 s.
_HOMES = {
    "AkimaModel": "fpmdask.models.akima",
    "AnalyticModel": "fpmdask.models.analytic",
    "Model": "fpmdask.models.base",
    "ConstantModel": "fpmdask.models.constant",
    "MeasuredModel": "fpmdask.models.measured",
    "PiecewiseLinearModel": "fpmdask.models.piecewise",
    "from_json": "fpmdask.models.stored",
    "SurfaceModel": "fpmdask.models.surface",
    "TabulatedModel": "fpmdask.models.tabulated",
}

__all__ = [*_HOMES]

if not TYPE_CHECKING:  # type checkers see the imports
    __getattr__, __dir__ = lazy(__name__, _HOMES)
