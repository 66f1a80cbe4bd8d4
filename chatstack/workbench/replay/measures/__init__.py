"""The measurements of each request, added up."""
