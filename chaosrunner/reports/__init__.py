"""What an analysis looks like to people and machines: terminal, Markdown, JSON, JUnit XML."""
