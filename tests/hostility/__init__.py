"""Overload and hostility: a real daemon, whoever means it harm, and a bystander that must not suffer."""
