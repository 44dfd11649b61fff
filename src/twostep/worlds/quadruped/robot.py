"""The robot: a trunk on four legs of three joints each, 12.9 kg in all, about the size of a large dog's front half.

Legs come as front left, front right, rear left, rear right; joints as hip abduction, hip, knee. What touches the ground
are four feet, four knees and the trunk; parts of a robot do not touch each other.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from twostep.errors import EnvError
from twostep.worlds.quadruped.terrain import SPACING, Terrain

Array = npt.NDArray[Any]

LEGS = ("FL", "FR", "RL", "RR")
JOINTS = ("abduction", "hip", "knee")
NUM_JOINTS = len(LEGS) * len(JOINTS)
STANCE = np.tile([0.0, 0.9, -1.8], len(LEGS))
"""Joint angles of standing."""
LOWEST, HIGHEST = np.tile([-0.86, -0.69, -2.8], len(LEGS)), np.tile([0.86, 3.0, -0.89], len(LEGS))
"""Joint limits."""
TORQUES = np.tile([23.7, 23.7, 35.5], len(LEGS))
"""Most that motors give, in Nm."""
STAND_HEIGHT = 0.27
"""Of the trunk above the ground."""
FRICTION, TRUNK_MASS = 0.8, 5.2
TIMESTEP = 0.005
THIGH = SHIN = 0.213
FOOT_RADIUS = 0.023
STIFF = 0.01
"""Time constant of contacts, in seconds, twice the timestep: a foot that sinks deep into a field of heights is pushed
aside by the edges between its triangles, and trips where all is flat."""
FEET, FEET_TOUCH, KNEES_TOUCH, TRUNK_TOUCH, TORQUE = (
    slice(0, 12), slice(12, 16), slice(16, 20), slice(20, 21), slice(21, 33),
)  # fmt: skip
"""Where sensors are: positions of the feet, forces on feet, knees and trunk, torques of the motors."""


class Body(NamedTuple):
    """What one robot differs by from others."""

    friction: float = FRICTION
    load: float = 0.0
    stiffness: float = 35.0
    damping: float = 0.8


def import_mujoco() -> Any:
    """Return MuJoCo, or say how to get it."""
    try:
        import_module("mujoco.rollout")
        return import_module("mujoco")
    except ModuleNotFoundError as error:
        raise EnvError(
            f"'quadruped' needs the module {error.name}, which cannot be found. "
            f'To mend it: pip install "twostep[quadruped]".'
        ) from error


def make_model(terrain: Terrain, body: Body, looks: str = "") -> Any:
    """Compile one robot on its ground; `looks` are sections of MuJoCo's language for those who draw it."""
    mujoco = import_mujoco()
    model = mujoco.MjModel.from_xml_string(describe(terrain).replace("</mujoco>", f"{looks}</mujoco>"))
    feet = [mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, f"{leg}_foot") for leg in LEGS]
    model.geom_friction[feet, 0] = body.friction
    trunk = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, "trunk")
    heavier = 1 + body.load / TRUNK_MASS
    model.body_mass[trunk] *= heavier
    model.body_inertia[trunk] *= heavier
    model.actuator_gainprm[:, 0] = body.stiffness
    model.actuator_biasprm[:, 1], model.actuator_biasprm[:, 2] = -body.stiffness, -body.damping
    mujoco.mj_setConst(model, mujoco.MjData(model))
    if not terrain.is_flat:
        lowest, highest = terrain.heights.min(), terrain.heights.max()
        model.hfield_data[:] = ((terrain.heights - lowest) / (highest - lowest)).ravel()
    return model


def describe(terrain: Terrain) -> str:
    """Write the robot and its ground in MuJoCo's language."""
    legs = "".join(_leg(name, front, left) for name, (front, left) in zip(LEGS, _CORNERS, strict=True))
    joints = [
        (f"{leg}_{joint}", at) for at, (leg, joint) in enumerate((leg, joint) for leg in LEGS for joint in JOINTS)
    ]
    motors = "".join(
        f'<position name="{name}" joint="{name}" forcerange="-{TORQUES[at]} {TORQUES[at]}"/>' for name, at in joints
    )
    touched = [f"{leg}_{part}" for part in ("foot", "knee") for leg in LEGS] + ["trunk"]
    sensors = "".join(f'<framepos objtype="site" objname="{leg}_foot"/>' for leg in LEGS)
    sensors += "".join(f'<touch site="{site}"/>' for site in touched)
    sensors += "".join(f'<actuatorfrc actuator="{name}"/>' for name, _ in joints)
    asset, ground = _ground(terrain)
    return f"""
<mujoco model="quadruped">
  <compiler angle="radian"/>
  <option timestep="{TIMESTEP}" integrator="implicitfast" iterations="5" ls_iterations="8">
    <flag island="disable" warmstart="disable"/>
  </option>
  <default>
    <geom condim="3" contype="0" conaffinity="1" mass="0" friction="{FRICTION}" priority="1" solref="{STIFF} 1"/>
    <joint armature="0.01" damping="0.1"/>
  </default>
  <asset>{asset}</asset>
  <worldbody>
    {ground}
    <body name="trunk">
      <freejoint/>
      <inertial pos="0 0 0" mass="{TRUNK_MASS}" diaginertia="0.0168 0.063 0.0717"/>
      <geom name="trunk" type="box" size="0.19 0.05 0.055"/>
      <site name="trunk" type="box" size="0.2 0.06 0.065"/>
      {legs}
    </body>
  </worldbody>
  <actuator>{motors}</actuator>
  <sensor>{sensors}</sensor>
</mujoco>"""


_CORNERS = ((1, 1), (1, -1), (-1, 1), (-1, -1))


def _leg(name: str, front: int, left: int) -> str:
    low, high = LOWEST[:3], HIGHEST[:3]
    return f"""
    <body pos="{front * 0.1881} {left * 0.04675} 0">
      <inertial pos="0 0 0" mass="0.68" diaginertia="0.0008 0.0008 0.0006"/>
      <joint name="{name}_abduction" axis="1 0 0" range="{low[0]} {high[0]}"/>
      <body pos="0 {left * 0.08} 0">
        <inertial pos="0 {-left * 0.02} -0.03" mass="1.0" diaginertia="0.0056 0.0051 0.0013"/>
        <joint name="{name}_hip" axis="0 1 0" range="{low[1]} {high[1]}"/>
        <body pos="0 0 -{THIGH}">
          <inertial pos="0 0 -0.11" mass="0.24" diaginertia="0.003 0.003 0.0001"/>
          <joint name="{name}_knee" axis="0 1 0" range="{low[2]} {high[2]}"/>
          <geom name="{name}_knee" type="sphere" size="0.03"/>
          <site name="{name}_knee" type="sphere" size="0.04"/>
          <geom name="{name}_foot" type="sphere" size="{FOOT_RADIUS}" pos="0 0 -{SHIN}"/>
          <site name="{name}_foot" type="sphere" size="0.03" pos="0 0 -{SHIN}"/>
        </body>
      </body>
    </body>"""


def _ground(terrain: Terrain) -> tuple[str, str]:
    """Return the asset and the geom of a plane where all is flat, which is quicker, or of a height field."""
    if terrain.is_flat:
        return "", '<geom type="plane" size="0 0 1" contype="1" conaffinity="0" priority="0"/>'
    rows, columns = terrain.heights.shape
    half_x, half_y = (columns - 1) * SPACING / 2, (rows - 1) * SPACING / 2
    lowest, highest = float(terrain.heights.min()), float(terrain.heights.max())
    size = f"{half_x} {half_y} {highest - lowest} 0.5"
    place = f"{half_x} {half_y} {lowest}"
    asset = f'<hfield name="ground" nrow="{rows}" ncol="{columns}" size="{size}"/>'
    return asset, f'<geom type="hfield" hfield="ground" pos="{place}" contype="1" conaffinity="0" priority="0"/>'
