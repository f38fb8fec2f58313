"""Do tokens come at one pace or at two?"""
