"""What is measured of each request, and added up."""
