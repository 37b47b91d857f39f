"""Time as a function of units: what is known of one worker that runs one kernel."""

from fpmdask.models.akima import AkimaModel as AkimaModel
from fpmdask.models.analytic import AnalyticModel as AnalyticModel
from fpmdask.models.base import Model as Model
from fpmdask.models.base import from_json as from_json
from fpmdask.models.constant import ConstantModel as ConstantModel
from fpmdask.models.measured import MeasuredModel as MeasuredModel
from fpmdask.models.piecewise import PiecewiseLinearModel as PiecewiseLinearModel
from fpmdask.models.surface import SurfaceModel as SurfaceModel
from fpmdask.models.tabulated import TabulatedModel as TabulatedModel
