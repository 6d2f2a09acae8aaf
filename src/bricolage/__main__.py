"""`python -m bricolage` is the command `bricolage`."""

from bricolage.cli.main import main

if __name__ == "__main__":
    main()
