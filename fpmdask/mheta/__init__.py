"""MHETA."""

from fpmdask.mheta.anchors import anchors as anchors
from fpmdask.mheta.blocks import capacity as capacity
from fpmdask.mheta.evaluate import Evaluator as Evaluator
from fpmdask.mheta.evaluate import evaluator as evaluator
from fpmdask.mheta.evaluate import predict_many as predict_many
from fpmdask.mheta.machine import Machine as Machine
from fpmdask.mheta.prediction import Prediction as Prediction
from fpmdask.mheta.prediction import SectionPrediction as SectionPrediction
from fpmdask.mheta.prediction import predict as predict
from fpmdask.mheta.program import Program as Program
from fpmdask.mheta.sections import Array as Array
from fpmdask.mheta.sections import Communication as Communication
from fpmdask.mheta.sections import Section as Section
from fpmdask.mheta.sections import Stage as Stage
from fpmdask.mheta.spectrum import spectrum as spectrum
