"""Options for each Java that tests start.

It lives for seconds or minutes: compiling its code well takes as long as running it, and half of Spark's start is
reading classes, unless they come from an archive (``.ci/archive_classes.py``, made by ``make test``).
"""

from pathlib import Path

CLASSES = Path(__file__).resolve().parents[1] / "build" / "spark-classes.jsa"
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
if CLASSES.exists() and " " not in str(CLASSES):  # Spark splits them at spaces
    OPTIONS += f" -XX:SharedArchiveFile={CLASSES} -Xlog:cds=off"
