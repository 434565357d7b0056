"""What an analysis looks like to people and machines: terminal, Markdown, JSON, JUnit XML."""

from chaosrunner.reports.junit import junit
from chaosrunner.reports.markdown import markdown
from chaosrunner.reports.sections import Section, Table, sections, side_by_side
from chaosrunner.reports.terminal import render

__all__ = ["Section", "Table", "junit", "markdown", "render", "sections", "side_by_side"]
