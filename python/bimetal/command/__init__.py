"""The command ``bimetal`` of a package that was installed from a wheel; the program that is built from the sources has the
same words, and more of them."""
