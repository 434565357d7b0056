"""Plans: what a drill would do, found out without doing it."""
