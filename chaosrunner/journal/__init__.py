"""The write-ahead undo journal: what a run is about to change is on disk before it is changed."""
