"""Which worker has which blocks of a matrix, so that all finish together and little moves."""

from fpmdask.layout.br import br as br
from fpmdask.layout.columns import columns as columns
from fpmdask.layout.fpm_br import fpm_br as fpm_br
from fpmdask.layout.fpm_kl import fpm_kl as fpm_kl
from fpmdask.layout.kl import kl as kl
from fpmdask.layout.nrrp import nrrp as nrrp
from fpmdask.layout.rows import rows as rows
from fpmdask.layout.unit import UnitLayout as UnitLayout
from fpmdask.layout.zones import Layout as Layout
from fpmdask.layout.zones import Rectangle as Rectangle
