"""The fast lane: packets for which every decision is made already; see lane.py."""
