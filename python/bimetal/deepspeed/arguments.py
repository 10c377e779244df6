"""The options that scripts for DeepSpeed have."""

import argparse


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds ``--deepspeed``, which scripts ask for and nothing here needs, and ``--deepspeed_config FILE``, which
    ``initialize(args=…)`` reads. Returns the parser."""
    group = parser.add_argument_group("DeepSpeed", "Its configuration, for bimetal.deepspeed")
    group.add_argument("--deepspeed", action="store_true", help="train by way of the engine, where the script asks")
    group.add_argument("--deepspeed_config", metavar="FILE.json", help="the configuration")
    return parser
