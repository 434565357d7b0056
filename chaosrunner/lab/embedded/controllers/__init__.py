"""The controllers that a drill needs, each in its file, all in one process upon the lab's store."""
