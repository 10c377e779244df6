"""Independent runs of job files, each one process with one device, packed onto devices by speed.

What ``bimetal tune`` and ``bimetal ensemble`` share. A ``Pool`` starts the runs that a ``Source`` has waiting on the
devices of a ``Host``, which are this machine's (``LocalHost``) or a Ray cluster's (``RayHost``): docs/tuning.md.
"""
