"""What the verbs of the command `nrl-dump` do, as plain functions; `nrl_dump.cli` gives them a command line."""
