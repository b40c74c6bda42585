"""The files of the message log: lines, names, writing, recovery, retention. Knows no event loop."""
