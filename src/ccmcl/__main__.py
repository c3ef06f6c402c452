"""``python -m ccmcl``, the same as ``ccmcl``."""

from ccmcl.cli import main

if __name__ == "__main__":
    main()
