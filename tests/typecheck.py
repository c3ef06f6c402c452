"""The type checker that the import hook of the tests applies: whole numbers are welcome where floats are."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
