"""Files of 100-byte records with 10-byte keys, the sort benchmark's format: write, verify."""

from fpmdask.records.format import KEY_NBYTES as KEY_NBYTES
from fpmdask.records.format import RECORD_NBYTES as RECORD_NBYTES
from fpmdask.records.format import checksum as checksum
from fpmdask.records.generate import KINDS as KINDS
from fpmdask.records.generate import write_records as write_records
from fpmdask.records.verify import Verification as Verification
from fpmdask.records.verify import verify as verify
